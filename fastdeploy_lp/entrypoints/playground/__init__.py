"""The playground: pages of the server that show the effects of logits processors."""
