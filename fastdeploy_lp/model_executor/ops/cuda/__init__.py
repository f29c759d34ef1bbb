"""Operators in CUDA, compiled for the GPU at hand; their sources also compile for a CPU, where tests run them."""
