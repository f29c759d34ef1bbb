"""The import path of `Dimensions` in documents for authors of models."""

from fastdeploy_lp.model_executor.dimensions import Dimensions

__all__ = ["Dimensions"]
