"""Reads the tensors of a Hugging Face directory one by one, as a model asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - teaches numpy bfloat16, which most published checkpoints are in
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from tqdm import tqdm

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.finite import is_finite
from fastdeploy_lp.model_executor.loader.split import WHOLE, Split
from fastdeploy_lp.model_executor.parallel.communicator import SINGLE_RANK, Communicator

READABLE = ("BF16", "F16", "F32", "F64")
# Frequencies of the rotary embedding, which old checkpoints hold although config.json tells them.
COMPUTED = ".rotary_emb.inv_freq"


class WeightsError(CheckpointError):
    """A weight that is missing, left over, of the wrong shape or type, or no number."""


class Weights:
    """The tensors of a checkpoint; every one is taken once.

    communicator: the ranks that share the model; what a model says is split is read in part, for this rank alone.
    """

    def __init__(
        self, files: Sequence[Path], stack: ExitStack, *, communicator: Communicator, show_progress: bool
    ) -> None:
        self.communicator = communicator
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

    def take(self, name: str, shape: Sequence[int], split: Split = WHOLE) -> NDArray[np.float32]:
        """The tensor of that name as float32 on the host, or this rank's part of it if the model is shared.

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
            array = np.ascontiguousarray(self._read(handle, name, found, split), np.float32)
        if not is_finite(array):
            raise WeightsError(f"{path}: tensor {name} holds NaN or infinity")
        self._untaken.discard(name)
        self._progress.update()
        return array

    def _read(self, handle: Any, name: str, shape: Sequence[int], split: Split) -> NDArray[Any]:
        parts = split.parts(shape, self.communicator.rank, self.communicator.size)
        if parts is None:
            whole: NDArray[Any] = handle.get_tensor(name)
            return whole
        tensor = handle.get_slice(name)
        return np.concatenate([tensor[part] for part in parts], axis=split.axis)

    def require_all_taken(self) -> None:
        """Raise WeightsError if the checkpoint holds tensors that the model did not ask for."""
        if self._untaken:
            first = min(self._untaken)
            more = f" and {len(self._untaken) - 1} more are" if len(self._untaken) > 1 else " is"
            raise WeightsError(f"{self._source[first][0]}: tensor {first}{more} unknown to the model")


@contextmanager
def open_weights(
    files: Sequence[Path], *, communicator: Communicator = SINGLE_RANK, show_progress: bool = False
) -> Iterator[Weights]:
    """Open safetensors files for the time of loading; raises WeightsError for a file that cannot be read."""
    with ExitStack() as stack:
        yield Weights(files, stack, communicator=communicator, show_progress=show_progress)


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="numpy")
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read as safetensors: {error}") from None
