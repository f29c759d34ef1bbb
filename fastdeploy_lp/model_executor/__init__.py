"""Models, their layers and the loading of their weights; only the worker process imports this."""
