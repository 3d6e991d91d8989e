"""Serves a checkpoint at an OpenAI-compatible endpoint."""
