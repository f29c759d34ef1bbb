"""A worker of several ranks: the first leads, the others repeat its calls."""
