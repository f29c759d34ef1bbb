"""Middleware of all requests; plain ASGI, so that streamed tokens pass through no extra layer."""
