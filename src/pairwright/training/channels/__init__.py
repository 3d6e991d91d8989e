"""Training signals: preferences, rewards, teachers, likelihood."""
