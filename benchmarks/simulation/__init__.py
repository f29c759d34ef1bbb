"""A fleet of replicas, simulated with the worker's own scheduler."""
