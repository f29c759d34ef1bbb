"""Answers, whole or streamed: choices, events, and JSON that is encoded in pieces."""
