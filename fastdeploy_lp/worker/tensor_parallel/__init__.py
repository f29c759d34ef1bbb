"""A worker of several ranks: the first leads, the others compute what it computes."""
