"""Benchmarks: every figure is a ratio of two things measured side by side in one run.

`python -m benchmarks` (or `make bench`) runs them all; docs/benchmarks.md says what each one
compares, and what was measured.
"""
