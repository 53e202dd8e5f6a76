"""Konsil against other systems for federated learning, each in an environment of its own.

`python -m benchmarks.peers` (or `make bench-peers`) makes the environments, runs the sides in
turns and prints the ratios; docs/benchmarks.md says how each side is set up and why.
"""
