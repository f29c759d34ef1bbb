"""Find a model on this machine and turn GGUF files into Hugging Face directories; nothing is ever downloaded."""

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.files import ModelFiles
from fastdeploy_lp.checkpoint.resolve import resolve_model

__all__ = ["CheckpointError", "ModelFiles", "resolve_model"]
