"""A chat in the terminal: its commands and settings, and the two places that answers come from."""
