"""Scores: run scorers over experience tables, and measure the reliability of a judge."""
