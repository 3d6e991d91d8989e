"""Log formats of agents."""
