"""The cached stage from pairs to token ids, with its checks and previews."""
