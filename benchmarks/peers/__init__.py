"""Parts of `benchmarks/compare.py`."""
