"""Tasks that travel: verified, exported to other libraries and read from them, found again."""
