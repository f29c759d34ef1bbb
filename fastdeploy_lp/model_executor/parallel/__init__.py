"""Communication between ranks that share one model."""
