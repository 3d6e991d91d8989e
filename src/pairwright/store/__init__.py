"""Storage of experiences: the experience table, its columns, the byte codec, Arrow conversion, import and export."""
