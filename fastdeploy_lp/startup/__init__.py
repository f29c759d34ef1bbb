"""From options to a configuration: the options, the KV cache's size, and decisions of model and platform."""
