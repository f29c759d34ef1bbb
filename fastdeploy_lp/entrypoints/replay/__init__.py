"""Requests of a request log, run again and compared with what became of them."""
