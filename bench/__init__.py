"""Benchmarks: each against its peer in one run, as ratios of CPU seconds, with peak memory."""
