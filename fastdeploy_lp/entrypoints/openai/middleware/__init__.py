"""What every request passes on its way to a route; plain ASGI, so that a streamed token passes nothing of it."""
