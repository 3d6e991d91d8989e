"""Rollout formats of reinforcement learning frameworks."""
