"""Endpoint compatible with the Hugging Face Hub API, for datasets."""
