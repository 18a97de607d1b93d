"""Decisions at a chosen rate: thresholds that keep a promise."""
