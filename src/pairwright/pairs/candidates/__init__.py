"""Candidates of a build: their rows, rewards, groups and ids."""
