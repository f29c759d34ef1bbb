"""What real clients are to do at a real server, as tables: one entry an option."""
