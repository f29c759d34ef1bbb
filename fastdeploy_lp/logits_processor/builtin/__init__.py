"""Processors that ship with the server; `registry.BUILTIN` lists them by name."""
