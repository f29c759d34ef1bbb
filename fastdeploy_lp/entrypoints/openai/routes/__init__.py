"""The HTTP routes besides chat and completions, one file a noun."""
