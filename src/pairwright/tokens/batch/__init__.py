"""Collators, which build all batches."""
