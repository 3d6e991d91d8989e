"""Data types: messages, experiences, pairs; their canonical form, hashes, arrays and groups."""
