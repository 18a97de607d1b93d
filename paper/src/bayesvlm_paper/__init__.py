"""The paper, run again: every table and figure, its printed numbers, and what holds of its claims."""
