"""A worker's program that ends with status 3 before it says anything."""

raise SystemExit(3)
