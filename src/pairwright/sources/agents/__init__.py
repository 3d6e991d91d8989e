"""Formats in which agents log their own runs."""
