"""A chat in the terminal: its commands, its settings and the two backends for answers."""
