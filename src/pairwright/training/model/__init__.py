"""The model in training: loading, layouts, attention, reference, distribution."""
