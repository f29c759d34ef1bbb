"""Finds models on this machine and converts GGUF files to Hugging Face directories; downloads nothing."""

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.files import ModelFiles, read_limits
from fastdeploy_lp.checkpoint.resolve import recommended_sampling, resolve_model
from fastdeploy_lp.checkpoint.safetensors_file import num_parameters

__all__ = ["CheckpointError", "ModelFiles", "num_parameters", "read_limits", "recommended_sampling", "resolve_model"]
