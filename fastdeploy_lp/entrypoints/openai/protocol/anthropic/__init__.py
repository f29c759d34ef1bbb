"""Bodies of Anthropic's Messages API."""
