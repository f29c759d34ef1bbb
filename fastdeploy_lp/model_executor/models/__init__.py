"""One file a model family; `registry.MODELS` says which architecture is which."""
