"""Formats of tracing systems."""
