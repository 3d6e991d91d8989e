"""Collators: the only way to a batch."""
