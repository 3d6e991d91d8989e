"""Formats of rollouts in reinforcement learning."""
