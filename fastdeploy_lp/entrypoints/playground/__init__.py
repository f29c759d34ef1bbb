"""The playground: pages that the API serves, on which people see what logits processors do."""
