"""pairwright turns what an agent did into a better agent."""
