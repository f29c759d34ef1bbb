"""Sockets and connections of the HTTP server, and their bounds."""
