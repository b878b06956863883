"""Benchmarks: what a step costs, as ratios to peers measured in turn in the same run.

Run `python -m benchmarks` (or `--short`). These are measurements, not tests: a missed target is
printed, never raised.
"""
