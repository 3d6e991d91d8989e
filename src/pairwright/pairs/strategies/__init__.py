"""Which candidates of a group are paired."""
