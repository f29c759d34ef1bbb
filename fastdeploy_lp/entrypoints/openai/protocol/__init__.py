"""Supported bodies of the OpenAI API, one file per kind of body."""
