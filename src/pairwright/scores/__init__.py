"""Scores: scorers run over experience tables, and how far a judge can be trusted."""
