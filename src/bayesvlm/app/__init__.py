"""A page to try it on: `bayesvlm app`. Needs the extra `app` (Gradio).

Each tab is a module: functions from what somebody typed to numbers and to HTML, which need no page, and `tab`, which
puts them on one. What is shown is what the library returns.
"""
