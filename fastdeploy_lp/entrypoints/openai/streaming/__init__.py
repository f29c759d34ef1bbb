"""Responses that send an answer in pieces: events of a stream, and long JSON."""
