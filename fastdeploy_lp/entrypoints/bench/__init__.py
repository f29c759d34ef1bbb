"""The load generator behind `fastdeploy-lp bench` and `benchmarks/serving.py`."""
