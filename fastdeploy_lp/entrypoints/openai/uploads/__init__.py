"""Logits processors that clients upload."""
