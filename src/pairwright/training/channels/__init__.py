"""What is trained on: preferences, rewards, teachers, likelihood."""
