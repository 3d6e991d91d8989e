"""Readers of agent traces."""
