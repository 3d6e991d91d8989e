"""The recording proxy, between an agent and its model."""
