"""Export formats of tracing systems."""
