"""Dataset formats: chats and preferences."""
