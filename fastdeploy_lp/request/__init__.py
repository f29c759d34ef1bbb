"""Parameters, limits and results of a request; both processes use them."""
