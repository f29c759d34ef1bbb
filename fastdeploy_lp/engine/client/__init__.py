"""The worker's client: requests in flight, the worker process and its supervision, outputs."""
