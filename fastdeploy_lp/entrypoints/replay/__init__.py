"""Requests of a request log, run again and compared with their recorded outputs."""
