"""Request files in OpenAI's batch format, answered as the server answers single requests."""
