"""Replicas on Ray Serve: `serve run configs/ray-serve.yaml`."""

try:
    import ray.serve  # noqa: F401 - for a clear message when it is not there
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}; replicas need Ray Serve: pip install 'fastdeploy-lp[ray]'") from None

from fastdeploy_lp.entrypoints.ray_serve.ingress import build_app

__all__ = ["build_app"]
