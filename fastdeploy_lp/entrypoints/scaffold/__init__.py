"""Packages of new logits processors, written from templates."""
