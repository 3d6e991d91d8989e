"""Where turns begin and end, how they stop, and what a template drops."""
