"""Reading weights."""
