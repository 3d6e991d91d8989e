"""Endpoint compatible with the Hugging Face Hub API: datasets, and the models that jobs made."""
