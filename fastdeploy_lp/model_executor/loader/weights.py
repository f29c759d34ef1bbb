"""Reads the tensors of a Hugging Face directory one by one, as a model asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import ml_dtypes  # noqa: F401 - teaches numpy bfloat16, which most published checkpoints are in
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.finite import is_finite

READABLE = ("BF16", "F16", "F32", "F64")
# Frequencies of the rotary embedding, which old checkpoints hold although config.json tells them.
COMPUTED = ".rotary_emb.inv_freq"


class WeightsError(CheckpointError):
    """A weight that is missing, left over, of the wrong shape or type, or no number."""


class Weights:
    """The tensors of a checkpoint; every one is taken once."""

    def __init__(self, files: Sequence[Path], stack: ExitStack, *, show_progress: bool) -> None:
        self._files = [(path, stack.enter_context(_open(path))) for path in files]
        self._source = {name: (path, handle) for path, handle in self._files for name in handle.keys()}  # noqa: SIM118
        self._untaken = {name for name in self._source if not name.endswith(COMPUTED)}
        self._progress = stack.enter_context(
            tqdm(
                total=len(self._untaken),
                desc="loading weights",
                unit="tensor",
                disable=not show_progress,
                leave=False,
            )
        )

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def take(self, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
        """The tensor of that name as float32 on the host.

        Raises WeightsError unless it is there, has this shape and holds floating-point numbers, all of them finite.
        """
        if name not in self._source:
            raise WeightsError(f"{', '.join(str(path) for path, _ in self._files)}: tensor {name} is missing")
        path, handle = self._source[name]
        header = handle.get_slice(name)
        dtype, found = header.get_dtype(), list(header.get_shape())
        if dtype not in READABLE:
            raise WeightsError(f"{path}: tensor {name} is {dtype}; weights must be one of {', '.join(READABLE)}")
        if found != list(shape):
            raise WeightsError(f"{path}: tensor {name} has shape {found}; config.json makes it {list(shape)}")
        # A float64 may be too large for a float32, which is_finite then tells.
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(handle.get_tensor(name), np.float32)
        if not is_finite(array):
            raise WeightsError(f"{path}: tensor {name} holds NaN or infinity")
        self._untaken.discard(name)
        self._progress.update()
        return array

    def require_all_taken(self) -> None:
        """Raise WeightsError if the checkpoint holds tensors that the model did not ask for."""
        if self._untaken:
            first = min(self._untaken)
            more = f" and {len(self._untaken) - 1} more are" if len(self._untaken) > 1 else " is"
            raise WeightsError(f"{self._source[first][0]}: tensor {first}{more} unknown to the model")


@contextmanager
def open_weights(files: Sequence[Path], *, show_progress: bool = False) -> Iterator[Weights]:
    """Open safetensors files for the time of loading; raises WeightsError for a file that cannot be read."""
    with ExitStack() as stack:
        yield Weights(files, stack, show_progress=show_progress)


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read as safetensors: {error}") from None
