"""How the page looks: the palette of the reports, light and dark, and what Gradio has no component for."""

from __future__ import annotations

from bayesvlm.report.theme import css_variables

DOUBT_IN_THE_DARK = "#f07fae"
"""The colour of what is unknown, brighter than in the reports: there it is a line, here it is a word."""
CSS = (
    ":root { "
    + css_variables("light")
    + " --doubt: var(--unseen-concept); }\n.dark { "
    + css_variables("dark")
    + f" --doubt: {DOUBT_IN_THE_DARK}; }}"
    + """
.gradio-container { --color-accent: var(--accent); --slider-color: var(--accent); }
.gradio-container input[type=range] { --neutral-200: var(--grid); }
.gradio-container { max-width: 72rem !important; width: 100% !important; margin: 0 auto !important; }
.gradio-container main { width: 100%; }
@media (max-width: 30rem) {
  .gradio-container { padding: .5rem !important; }
  .tab-container button { padding: .25rem .4rem !important; font-size: .875rem !important; }
  #title h1 { font-size: 1.3rem; }
  button.lg { padding-left: .5rem !important; padding-right: .5rem !important; }
}
.gradio-container input[role="combobox"] { text-overflow: ellipsis; }
.html-container:has(> .prose > .bv), .html-container:has(> .bv) { padding: 0 !important; }
.bv .picks { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: .5rem; }
.bv .picks button { padding: .4rem; border: 1px solid var(--grid); border-radius: 8px; background: var(--surface);
  color: var(--ink); font-size: .7rem; font-weight: 400; line-height: 1.2; cursor: pointer; hyphens: auto; }
.bv .picks span { display: block; overflow-wrap: break-word; }
@media (max-width: 30rem) {
  .bv .picks { gap: .3rem; }
  .bv .picks button { padding: .3rem .1rem; font-size: .65rem; }
  .bv .picks img.small { width: 85%; margin: 0 auto .25rem; }
}
.bv .picks button:hover { border-color: var(--accent); }
.bv img.small { width: 100%; aspect-ratio: 1; object-fit: contain; background: #fff; border-radius: 4px;
  margin-bottom: .25rem; }
.bv { color: var(--ink); font-size: 1rem; line-height: 1.45; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.bv h3 { margin: 0 0 .6rem; font-size: 1.05rem; font-weight: 650; color: var(--ink); }
.bv p { margin: .4rem 0; color: var(--ink); }
.bv .quiet { color: var(--muted); font-size: .9rem; }
.bv ul.rows { margin: 0; padding: 0; list-style: none; }
.bv ul.rows > li { padding: .5rem 0; border-top: 1px solid var(--grid); color: var(--ink); }
.bv .line { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem; overflow-wrap: anywhere; }
.bv .name { font-weight: 600; }
.bv .pair { display: grid; grid-template-columns: 5.5rem 1fr 4rem; gap: .1rem .6rem; align-items: center;
  font-size: .875rem; }
.bv .pair > :nth-child(3n) { text-align: right; }
.bv .bar { height: .5rem; border-radius: 2px; background: var(--grid); overflow: hidden; display: flex; }
.bv .bar span { display: block; height: 100%; }
.bv .bayes { background: var(--bayes); }
.bv .plain { background: var(--plain); }
.bv .model { background: repeating-linear-gradient(45deg, var(--temperature) 0 4px, var(--grid) 4px 7px); }
.bv .range { position: relative; height: .9rem; margin: 0 .25rem; }
.bv .range::before { content: ""; position: absolute; inset: 50% -.25rem auto; border-top: 1px dotted var(--muted); }
.bv .interval { position: absolute; top: calc(50% - 1.5px); height: 3px; border-radius: 2px; background: var(--ink); }
.bv .mean { position: absolute; top: calc(50% - 4px); width: 8px; height: 8px; margin-left: -4px; border-radius: 50%;
  background: var(--ink); }
.bv .axis { display: flex; justify-content: space-between; color: var(--muted); font-size: .75rem; }
.bv .mark { border: 1px solid currentColor; border-radius: 999px; padding: 0 .5rem; font-size: .75rem;
  color: var(--accent); font-weight: 600; white-space: nowrap; }
.bv .mark.doubt { color: var(--doubt); }
.bv .facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(15rem, 100%), 1fr)); gap: 0 1.5rem;
  margin: 0 0 1rem; padding: .75rem 1rem; border-radius: 8px; background: var(--surface); }
@media (min-width: 64rem) {
  .bv .facts:has(img) { grid-template-columns: 12rem 1fr; }
  .bv .facts > div:first-child:has(img) { grid-row: span 6; }
}
.bv .facts > div:not(:last-child) { margin-bottom: .75rem; }
.bv .facts h4 { margin: 0; font-size: .8rem; font-weight: 500; color: var(--muted); }
.bv .facts p { margin: .1rem 0; }
.bv .alert { padding: .6rem .9rem; border-left: 3px solid var(--doubt); background: var(--surface);
  border-radius: 4px; overflow-wrap: anywhere; }
.bv .key { display: inline-block; width: .8rem; height: .55rem; border-radius: 2px; margin-right: .3rem; }
.bv img.shown { display: block; width: 12rem; max-width: 100%; max-height: 16rem; object-fit: contain;
  background: #fff; border-radius: 6px; border: 1px solid var(--grid); }
.bv .cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(14rem, 100%), 1fr)); gap: .75rem;
  align-items: start; }
.bv .card { border: 1px solid var(--grid); border-radius: 8px; padding: .75rem; background: var(--surface); }
.bv .card img { width: 4.5rem; height: 4.5rem; object-fit: contain; background: #fff; border-radius: 4px; }
.bv .card summary { cursor: pointer; list-style-position: inside; }
.bv .two { display: flex; gap: .5rem; margin-top: .4rem; }
.bv .card[open] { grid-row: span 2; }
.bv .card[open] img { width: 7rem; height: 7rem; }
.bv .card dl { display: grid; grid-template-columns: auto 1fr; gap: .1rem .75rem; margin: .5rem 0 0;
  font-size: .85rem; }
.bv .card dt { color: var(--muted); }
.bv .card dd { margin: 0; overflow-wrap: anywhere; }
.bv table, #card table { border-collapse: collapse !important; border: 0 !important; font-size: .9rem;
  margin: .5rem 0; }
.bv tr, #card tr { border: 0 !important; }
.bv table td, .bv table th, #card table td, #card table th { padding: .3rem 1.5rem .3rem 0 !important;
  border-width: 0 0 1px !important; border-bottom-color: var(--grid) !important; color: var(--ink); font-weight: 400;
  overflow-wrap: normal; word-break: normal; }
.bv table td, .bv table th { text-align: left; white-space: nowrap; }
#card table td:not(:first-child), #card table th:not(:first-child) { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
@media (max-width: 30rem) {
  .bv table, #card table { font-size: .75rem; }
  .bv table td, .bv table th, #card table td, #card table th { padding-right: .5rem !important; }
  .bv table td:not(.whole), .bv table th { white-space: normal; }
  .bv svg text { font-size: 16px; }
}
#card h1 { font-size: 1.3rem; }
#card pre, #card code { white-space: pre-wrap; overflow-wrap: anywhere; }
.bv thead th { color: var(--muted); }
.bv td.number, .bv th.number { text-align: right; }
.bv td:last-child, .bv th:last-child { padding-right: 0 !important; }
.bv .scroll { overflow-x: auto; }
.bv svg { width: 100%; height: auto; max-width: 32rem; display: block; font-family: inherit; margin: 0 0 1rem; }
.bv summary:focus-visible, .bv button:focus-visible, .bv .scroll:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 3px; }
"""
)
