"""How ranks that share one model talk to each other."""
