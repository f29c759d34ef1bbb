"""One file a model family; `registry` says which architecture is which."""
