"""Pairing strategies: which candidates are paired."""
