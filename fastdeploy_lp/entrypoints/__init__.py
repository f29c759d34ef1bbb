"""Where a user enters: offline `LLM`, the command line and the OpenAI-compatible server."""
