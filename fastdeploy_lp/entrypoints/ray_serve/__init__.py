"""Replicas on Ray Serve: `serve run configs/ray-serve.yaml`. Needs the extra `ray`."""

from fastdeploy_lp.entrypoints.ray_serve.application import build_app

__all__ = ["build_app"]
