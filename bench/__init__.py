"""Benchmarks: each compares this package with a peer in one run, by CPU seconds and peak memory."""
