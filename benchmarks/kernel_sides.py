"""The two sides of a comparison: operations on rows of logits by the compiled operators, and by the CUDA kernels."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from kernel_cases import Case
from numpy.typing import DTypeLike, NDArray

from fastdeploy_lp.model_executor.ops.build import SOURCE_DIRECTORY, compile_files
from fastdeploy_lp.model_executor.ops.cuda.device import Device
from fastdeploy_lp.model_executor.ops.cuda.row_kernels import Logits, RowKernels
from fastdeploy_lp.model_executor.ops.row_ops import Floats, TokenLists
from fastdeploy_lp.model_executor.ops.row_signatures import addresses, declare_row_functions
from fastdeploy_lp.model_executor.ops.structs import AdditionsStruct

Arrays = Sequence[NDArray[Any]]


class ReadableDevice(Device, Protocol):
    """A device whose memory can be read."""

    def read(self, address: int, target: NDArray[Any]) -> None:
        """Fills an array, after everything that was queued before."""


class Side(ABC):
    """Each operation returns its results, or the changed logits, as host arrays."""

    @abstractmethod
    def draw(self, case: Case) -> Arrays: ...

    @abstractmethod
    def filtered(self, case: Case) -> Arrays: ...

    @abstractmethod
    def logprobs(self, case: Case) -> Arrays: ...

    @abstractmethod
    def logits_listed(self, case: Case) -> Arrays: ...

    @abstractmethod
    def compare(self, case: Case) -> Arrays: ...

    @abstractmethod
    def cut(self, case: Case) -> Arrays: ...

    @abstractmethod
    def penalize(self, case: Case) -> Arrays: ...

    @abstractmethod
    def ban(self, case: Case) -> Arrays: ...

    @abstractmethod
    def allow_only(self, case: Case) -> Arrays: ...

    @abstractmethod
    def mask(self, case: Case) -> Arrays: ...

    @abstractmethod
    def force(self, case: Case) -> Arrays: ...

    @abstractmethod
    def add(self, case: Case) -> Arrays: ...

    @abstractmethod
    def add_scaled(self, case: Case) -> Arrays: ...

    @abstractmethod
    def values_at(self, case: Case) -> Arrays: ...

    @abstractmethod
    def copy_rows(self, case: Case) -> Arrays: ...


OPERATIONS = tuple(name for name in vars(Side) if not name.startswith("_"))


def result_shapes(case: Case, count: int) -> list[tuple[tuple[int, ...], DTypeLike]]:
    """Shapes and types of values, tokens and ranks."""
    rows = len(case.logits)
    return [((rows, count + 1), np.float32), ((rows, count + 1), np.int64), ((rows,), np.int64)]


def chosen_tokens(case: Case) -> NDArray[np.int64]:
    """For each row a token, or -1 where none can be drawn."""
    usable = np.isfinite(case.logits.max(axis=1))
    return np.where(usable, case.forced, -1)


class CompiledSide(Side):
    """The compiled operators."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        declare_row_functions(library)

    @classmethod
    def compile(cls, folder: Path) -> CompiledSide:
        """Compiles those on rows alone, in seconds, into a library in this folder."""
        path = folder / "rows.so"
        compile_files(sorted((SOURCE_DIRECTORY / "rows").glob("*.cpp")), path)
        return cls(ctypes.CDLL(str(path)))

    def draw(self, case: Case) -> Arrays:
        rows, size = case.logits.shape
        tokens = np.empty(rows, np.int64)
        self._library.fdlp_draw_rows(
            *(case.logits.ctypes.data, rows, size, *_draw_arguments(case)),
            *addresses(case.draws.uniform, tokens),
        )
        return [tokens]

    def filtered(self, case: Case) -> Arrays:
        rows, size = case.logits.shape
        result = np.empty_like(case.logits)
        self._library.fdlp_filter_rows(case.logits.ctypes.data, rows, size, *_draw_arguments(case), *addresses(result))
        return [result]

    def logprobs(self, case: Case) -> Arrays:
        return self._logprobs(case, 1)

    def logits_listed(self, case: Case) -> Arrays:
        return self._logprobs(case, 0)

    def _logprobs(self, case: Case, normalize: int) -> Arrays:
        rows, size = case.logits.shape
        results = [np.empty(*each) for each in result_shapes(case, case.listed)]
        chosen = chosen_tokens(case)
        self._library.fdlp_row_logprobs(
            *(case.logits.ctypes.data, rows, size, *addresses(chosen), case.listed, normalize), *addresses(*results)
        )
        return results

    def compare(self, case: Case) -> Arrays:
        rows, size = case.logits.shape
        scratch = np.empty_like(case.logits)
        inverses, log_sums, entropies, moved = (np.empty(rows, np.float64) for _ in range(4))
        most_likely = np.empty(rows, np.int64)
        results = [log_sums, entropies, moved, most_likely]
        self._library.fdlp_compare_rows(
            *(case.logits.ctypes.data, rows, size), *addresses(case.before, scratch, inverses, *results)
        )
        return results

    def cut(self, case: Case) -> Arrays:
        logits, rows = case.logits.copy(), np.arange(len(case.logits))
        self._library.fdlp_cut_rows(
            *(logits.ctypes.data, logits.shape[1], case.cut, len(rows)), *addresses(rows, case.cut_values)
        )
        return [logits]

    def penalize(self, case: Case) -> Arrays:
        logits, given = case.logits.copy(), case.penalties
        self._library.fdlp_penalize(
            *(logits.ctypes.data, logits.shape[1], *_list_arguments(given.lists)),
            *addresses(given.counts, given.repetition, given.presence, given.frequency),
        )
        return [logits]

    def ban(self, case: Case) -> Arrays:
        logits = case.logits.copy()
        self._library.fdlp_ban(
            *(logits.ctypes.data, logits.shape[1], len(case.place_rows)), *addresses(case.place_rows, case.place_tokens)
        )
        return [logits]

    def allow_only(self, case: Case) -> Arrays:
        logits = case.logits.copy()
        self._library.fdlp_allow_only(logits.ctypes.data, logits.shape[1], *_list_arguments(case.lists))
        return [logits]

    def mask(self, case: Case) -> Arrays:
        logits, rows = case.logits.copy(), np.arange(len(case.logits))
        self._library.fdlp_mask(logits.ctypes.data, logits.shape[1], len(rows), *addresses(rows, case.bits))
        return [logits]

    def force(self, case: Case) -> Arrays:
        # Numpy's: the CPU's operators leave it to numpy as well.
        logits = np.full_like(case.logits, -np.inf)
        logits[np.arange(len(logits)), case.forced] = 0.0
        return [logits]

    def add(self, case: Case) -> Arrays:
        logits = case.logits.copy()
        places = case.place_rows * logits.shape[1] + case.place_tokens
        given = AdditionsStruct(len(places), *addresses(places, case.values))
        self._library.fdlp_add(logits.ctypes.data, ctypes.addressof(given))
        return [logits]

    def add_scaled(self, case: Case) -> Arrays:
        logits, kept = case.logits.copy(), case.distinct
        arrays = (case.place_rows[kept], case.place_tokens[kept], case.values[kept])
        self._library.fdlp_add_scaled(logits.ctypes.data, logits.shape[1], len(arrays[0]), *addresses(*arrays))
        return [logits]

    def values_at(self, case: Case) -> Arrays:
        return [case.logits[case.place_rows, case.place_tokens]]

    def copy_rows(self, case: Case) -> Arrays:
        return [case.logits[case.lists.rows]]


class KernelSide(Side):
    """The kernels on a device, to which the logits are copied first."""

    def __init__(self, device: ReadableDevice, threads: int | None) -> None:
        self._device = device
        self._kernels = RowKernels(device, threads)

    def draw(self, case: Case) -> Arrays:
        tokens = ((len(case.logits),), np.int64)
        return self._results(case, [tokens], lambda logits, to: self._kernels.draw(logits, case.draws, to))

    def filtered(self, case: Case) -> Arrays:
        shape = (case.logits.shape, np.float32)
        return self._results(case, [shape], lambda logits, to: self._kernels.filter(logits, case.draws, to))

    def logprobs(self, case: Case) -> Arrays:
        return self._logprobs(case, normalize=True)

    def logits_listed(self, case: Case) -> Arrays:
        return self._logprobs(case, normalize=False)

    def _logprobs(self, case: Case, *, normalize: bool) -> Arrays:
        chosen = self._device.upload(chosen_tokens(case))

        def run(logits: Logits, values: int, tokens: int, ranks: int) -> None:
            self._kernels.logprobs(
                *(logits, chosen.address, case.listed),
                normalize=normalize,
                values=values,
                tokens=tokens,
                ranks=ranks,
            )

        return self._results(case, result_shapes(case, case.listed), run)

    def compare(self, case: Case) -> Arrays:
        rows = (len(case.logits),)
        shapes: list[tuple[tuple[int, ...], DTypeLike]] = [*[(rows, np.float64)] * 3, (rows, np.int64)]

        def run(logits: Logits, log_sums: int, entropies: int, moved: int, most_likely: int) -> None:
            self._kernels.compare(
                *(logits, case.before),
                log_sums=log_sums,
                entropies=entropies,
                moved=moved,
                most_likely=most_likely,
            )

        return self._results(case, shapes, run)

    def cut(self, case: Case) -> Arrays:
        rows = np.arange(len(case.logits))
        return self._edited(case, lambda logits: self._kernels.cut(logits, case.cut, rows, case.cut_values))

    def penalize(self, case: Case) -> Arrays:
        return self._edited(case, lambda logits: self._kernels.penalize(logits, case.penalties))

    def ban(self, case: Case) -> Arrays:
        return self._edited(case, lambda logits: self._kernels.ban(logits, case.place_rows, case.place_tokens))

    def allow_only(self, case: Case) -> Arrays:
        return self._edited(case, lambda logits: self._kernels.allow_only(logits, case.lists))

    def mask(self, case: Case) -> Arrays:
        rows = np.arange(len(case.logits))
        return self._edited(case, lambda logits: self._kernels.mask(logits, rows, case.bits))

    def force(self, case: Case) -> Arrays:
        rows = np.arange(len(case.logits))
        return self._edited(case, lambda logits: self._kernels.force(logits, rows, case.forced))

    def add(self, case: Case) -> Arrays:
        def run(logits: Logits) -> None:
            self._kernels.add(logits, case.place_rows, case.place_tokens, case.values)

        return self._edited(case, run)

    def add_scaled(self, case: Case) -> Arrays:
        kept = case.distinct
        arrays = (case.place_rows[kept], case.place_tokens[kept], case.values[kept])
        return self._edited(case, lambda logits: self._kernels.add_scaled(logits, *arrays))

    def values_at(self, case: Case) -> Arrays:
        shape = (case.place_rows.shape, np.float32)

        def run(logits: Logits, to: int) -> None:
            self._kernels.values_at(logits, case.place_rows, case.place_tokens, to)

        return self._results(case, [shape], run)

    def copy_rows(self, case: Case) -> Arrays:
        shape = ((len(case.lists.rows), case.logits.shape[1]), np.float32)
        return self._results(case, [shape], lambda logits, to: self._kernels.copy_rows(logits, case.lists.rows, to))

    def _results(
        self, case: Case, shapes: Sequence[tuple[tuple[int, ...], DTypeLike]], run: Callable[..., None]
    ) -> Arrays:
        results = [np.empty(*each) for each in shapes]
        held = [self._device.empty(each.nbytes) for each in results]
        self._edited(case, lambda logits: run(logits, *(each.address for each in held)))
        for memory, result in zip(held, results, strict=True):
            self._device.read(memory.address, result)
        return results

    def _edited(self, case: Case, run: Callable[[Logits], None]) -> Arrays:
        """The logits after a run, within a frame of NaN that must stay as it is."""
        rows, size = case.logits.shape
        frame = np.full((rows + 2, size), np.nan, np.float32)
        frame[1:-1] = case.logits
        memory = self._device.upload(frame)
        run(Logits(memory.address + size * frame.itemsize, rows, size))
        after = np.empty_like(frame)
        self._device.read(memory.address, after)
        if not np.isnan(after[[0, -1]]).all():
            raise RuntimeError("a kernel wrote outside of its rows")
        return [after[1:-1]]


def same_bits(mine: Arrays, theirs: Arrays) -> bool:
    """Returns True if all elements have the same bits, or both are NaN."""
    return all(
        each.shape == other.shape
        and bool(((_words(each) == _words(other)) | ((each != each) & (other != other))).all())
        for each, other in zip(mine, theirs, strict=True)
    )


def _words(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).view(np.int64 if array.itemsize == 8 else np.int32)


def _draw_arguments(case: Case) -> tuple[int, ...]:
    draws = case.draws
    return addresses(draws.temperature, draws.min_p, draws.top_k, draws.top_p)


def _list_arguments(lists: TokenLists) -> tuple[int, ...]:
    return (len(lists.rows), *addresses(lists.rows, lists.offsets, lists.tokens))


__all__ = ["OPERATIONS", "CompiledSide", "Floats", "KernelSide", "ReadableDevice", "Side", "same_bits"]
