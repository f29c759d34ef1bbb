"""A vLLM V1 logits processor that installs itself as an entry point."""
