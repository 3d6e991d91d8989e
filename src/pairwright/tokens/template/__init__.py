"""Rendering a chat template with the provenance of every character."""
