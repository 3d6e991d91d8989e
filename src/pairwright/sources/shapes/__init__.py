"""Message shapes that several formats share."""
