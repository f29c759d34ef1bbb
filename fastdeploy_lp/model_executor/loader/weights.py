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


class WeightsError(ValueError):
    """A weight that is missing, left over or of the wrong shape."""


class Weights:
    """The tensors of a checkpoint; every one is taken once."""

    def __init__(self, files: Sequence[Path], stack: ExitStack, *, show_progress: bool) -> None:
        self._handles = [(path, stack.enter_context(_open(path))) for path in files]
        self._source = {name: handle for _, handle in self._handles for name in handle.keys()}  # noqa: SIM118
        self._untaken = set(self._source)
        self._progress = stack.enter_context(
            tqdm(total=len(self._source), desc="loading weights", unit="tensor", disable=not show_progress, leave=False)
        )

    def __contains__(self, name: str) -> bool:
        return name in self._source

    def take(self, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
        """The tensor of that name as float32 on the host; raises WeightsError unless it has this shape."""
        array = self._read(name)
        if array.shape != tuple(shape):
            raise WeightsError(f"{name}: shape {list(array.shape)} in the file, {list(shape)} expected by the model")
        self._untaken.discard(name)
        self._progress.update()
        return np.ascontiguousarray(array, np.float32)

    def require_all_taken(self) -> None:
        """Raise WeightsError if the checkpoint holds tensors that the model did not ask for."""
        if self._untaken:
            some = ", ".join(sorted(self._untaken)[:3])
            raise WeightsError(f"{len(self._untaken)} tensors of the checkpoint are unknown to the model: {some}")

    def _read(self, name: str) -> NDArray[np.generic]:
        if name not in self._source:
            files = ", ".join(str(path) for path, _ in self._handles)
            raise WeightsError(f"{name}: missing from {files}")
        array: NDArray[np.generic] = self._source[name].get_tensor(name)
        return array


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
