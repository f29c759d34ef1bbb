"""Writes the packages of new logits processors."""
