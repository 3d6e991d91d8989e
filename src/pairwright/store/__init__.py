"""Where experiences live: the byte codec and the table on disk."""
