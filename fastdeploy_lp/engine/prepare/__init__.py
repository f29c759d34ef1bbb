"""From a request to sequences for the worker: limits, prompts, parameters, grammars."""
