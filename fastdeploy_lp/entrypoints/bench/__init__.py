"""The load generator of `fastdeploy-lp bench` and `benchmarks/serving.py`."""
