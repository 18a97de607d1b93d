"""Whole analyses, from images to numbers: each runs on any model it is given, the embedded world by default."""
