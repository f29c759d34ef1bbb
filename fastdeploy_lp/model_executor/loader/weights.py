"""Reads the tensors of a Hugging Face directory one by one, as a model asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fastdeploy_lp.checkpoint.blocks import BLOCK_TYPES
from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.checkpoint.safetensors_file import read_header
from fastdeploy_lp.model_executor.loader.split import WHOLE, Split
from fastdeploy_lp.model_executor.loader.stored_matrix import ELEMENTS, Matrix, StoredMatrix, StoredTensor, WeightsError
from fastdeploy_lp.model_executor.parallel.communicator import SINGLE_RANK, Communicator

__all__ = ["Weights", "WeightsError", "open_weights"]

# Element types that the compiled operators read directly from the file.
PACKED_FROM_FILE = ("BF16", "F16", "F32", *BLOCK_TYPES)
# Frequencies of the rotary embedding, which old checkpoints contain although config.json determines them.
COMPUTED = ".rotary_emb.inv_freq"


class Weights:
    """The tensors of a checkpoint; every one is taken at least once.

    communicator: the ranks that share the model; what a model says is split is read in part, for this rank alone.
    """

    def __init__(
        self, files: Sequence[Path], stack: ExitStack, *, communicator: Communicator, show_progress: bool
    ) -> None:
        self.communicator = communicator
        self._files = files
        self._tensors = {tensor.name: tensor for path in files for tensor in _open(path, stack)}
        self._untaken = {name for name in self._tensors if not name.endswith(COMPUTED)}
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
        return name in self._tensors

    @property
    def where(self) -> str:
        """The files, for messages."""
        return ", ".join(map(str, self._files))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all tensors that a model may take, by name."""
        return {name: tensor.shape for name, tensor in self._tensors.items() if not name.endswith(COMPUTED)}

    def skip(self, name: str) -> None:
        """Count a tensor that the model leaves out on purpose as taken."""
        self._untaken.discard(name)

    def take(self, name: str, shape: Sequence[int], split: Split = WHOLE) -> NDArray[np.float32]:
        """The tensor of that name as float32 on the host, or this rank's part of it if the model is shared.

        Raises WeightsError unless it is there, has this shape and holds floating-point numbers, all of them finite.
        """
        tensor = self._take(name, shape)
        stored = tensor.mapped()
        parts = split.parts(shape, self.communicator.rank, self.communicator.size)
        if parts is None:
            return tensor.floats(stored)
        if tensor.blocks is not None and split.axis != 0:
            # Parts of rows need not be whole blocks.
            stored = tensor.floats(stored)
            return np.concatenate([stored[part] for part in parts], axis=split.axis)
        return tensor.floats(np.concatenate([stored[part] for part in parts], axis=split.axis))

    def matrix(self, name: str, shape: tuple[int, int], split: Split = WHOLE) -> Matrix:
        """As `take`, for a matrix that is to be packed: it stays in its file until then.

        Raises WeightsError as `take` does, but for numbers that are not finite: those are found while it is packed.
        """
        tensor = self._tensors.get(name)
        parts = split.parts(shape, self.communicator.rank, self.communicator.size)
        if tensor is None or parts is not None or tensor.dtype not in PACKED_FROM_FILE:
            return self.take(name, shape, split)
        return StoredMatrix.of(self._take(name, shape))

    def _take(self, name: str, shape: Sequence[int]) -> StoredTensor:
        if name not in self._tensors:
            raise WeightsError(f"{self.where}: tensor {name} is missing")
        tensor = self._tensors[name]
        if tensor.dtype not in ELEMENTS and tensor.blocks is None:
            message = f"tensor {name} is {tensor.dtype}; weights must be one of {', '.join(ELEMENTS)}"
            raise WeightsError(f"{tensor.path}: {message}")
        if tensor.shape != tuple(shape):
            message = f"tensor {name} has shape {list(tensor.shape)}; config.json makes it {list(shape)}"
            raise WeightsError(f"{tensor.path}: {message}")
        if name in self._untaken:
            self._untaken.discard(name)
            self._progress.update()
        return tensor

    def require_all_taken(self) -> None:
        """Raise WeightsError if the checkpoint holds tensors that the model did not ask for."""
        if self._untaken:
            first = min(self._untaken)
            more = f" and {len(self._untaken) - 1} more are" if len(self._untaken) > 1 else " is"
            raise WeightsError(f"{self._tensors[first].path}: tensor {first}{more} unknown to the model")


@contextmanager
def open_weights(
    files: Sequence[Path], *, communicator: Communicator = SINGLE_RANK, show_progress: bool = False
) -> Iterator[Weights]:
    """Open safetensors files for the time of loading; raises WeightsError for a file that cannot be read."""
    with ExitStack() as stack:
        yield Weights(files, stack, communicator=communicator, show_progress=show_progress)


def _open(path: Path, stack: ExitStack) -> Iterator[StoredTensor]:
    try:
        header = read_header(path)
        stream = stack.enter_context(path.open("rb"))
    except CheckpointError as error:
        raise WeightsError(str(error)) from None
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read as safetensors: {error.strerror or error}") from None
    for name, tensor in header.items():
        yield StoredTensor(path, stream, name, tensor.dtype, tensor.shape, tensor.begin)
