"""The operator's policy: which logits processors and how many tokens each client's requests get."""
