"""Bodies of Anthropic's Messages API, and their translation to and from chat completions."""
