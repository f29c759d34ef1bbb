"""Request bodies: bounds on their size and shape, before any field is read."""
