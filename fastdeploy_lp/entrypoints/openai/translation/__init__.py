"""Bodies of the Responses and Messages APIs as chat completions, which the rest of the server knows."""
