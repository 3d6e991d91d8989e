"""Formats of datasets: chats and preferences."""
