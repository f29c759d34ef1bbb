"""Outputs that have a form: what a request asks for, the grammar that says it, and the library that follows it."""
