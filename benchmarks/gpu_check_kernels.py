"""Checks the CUDA kernels on a GPU, and times them.

Operations on rows must have the bits of the CPU's compiled operators, and attention the results of float64.

It needs the driver, the package of NVIDIA's runtime compiler and a C++ compiler, but no Paddle. Exits with status 0 if
all results are right, 1 if some are not, and 77, having checked nothing, on a machine without a GPU. With
`--shim` the kernels run on the CPU instead, and are not timed.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attention_cases import passes, same_bits_any_way
from attention_times import attention_times
from kernel_cases import Case, cases
from kernel_device import DriverDevice
from kernel_graphs import recorded_passes
from kernel_sides import OPERATIONS, CompiledSide, KernelSide, ReadableDevice, Side, same_bits
from kernel_times import times, torch_with_cuda
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.cuda.driver import CudaError
from fastdeploy_lp.model_executor.ops.cuda.nvrtc import NvrtcError
from fastdeploy_lp.model_executor.ops.cuda.sources import ELEMENTS, HEAD_DIMS, KernelSources

NO_GPU = 77
PROGRESS_SECONDS = 20.0
# Query heads of a KV head; of these, of element types and of sizes of heads, a few where the kernels run on the CPU.
GROUPS = (1, 2, 3, 4, 6, 7, 8, 16)
SHIM_GROUPS = (1, 3, 8)
SHIM_VARIANTS = (("bfloat16", 64),)
# Groups whose bits are compared in every way to compute a token.
BITS_GROUPS = (1, 4, 7)
PARTS = ("rows", "attention", "bits", "graphs", "times")


def differences(
    mine: Side, theirs: Side, given: Iterable[Case], operations: Sequence[str] = OPERATIONS
) -> Counter[str]:
    """Returns how many batches of each operation have other bits on one side than on the other."""
    found: Counter[str] = Counter()
    for each in given:
        for name in operations:
            found[name] += not same_bits(getattr(mine, name)(each), getattr(theirs, name)(each))
    return +found


def with_progress(given: Iterable[Case], rows: int) -> Iterator[Case]:
    """The cases, with a line on the standard error from time to time."""
    done, told = 0, time.monotonic()
    for each in given:
        yield each
        done += len(each.logits)
        if time.monotonic() - told > PROGRESS_SECONDS:
            told = time.monotonic()
            print(f"  {done} of {rows} rows", file=sys.stderr, flush=True)


def compare(device: ReadableDevice, threads: int | None, args: argparse.Namespace) -> bool:
    """Prints a report; returns True if all results have the same bits."""
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        reference = (
            CompiledSide.compile(Path(folder)) if args.library is None else CompiledSide(ctypes.CDLL(args.library))
        )
        given = with_progress(cases(args.rows, args.seed, args.wide_rows), args.rows)
        found = differences(KernelSide(device, threads), reference, given)
    if found:
        print(f"other bits than the CPU's: {', '.join(f'{name} in {count} batches' for name, count in found.items())}")
        return False
    print(
        f"{len(OPERATIONS)} operations have the CPU's bits on {args.rows} random rows, {args.wide_rows} of them with "
        "151,936 tokens"
    )
    return True


def attend(
    device_of: Callable[[KernelSources], ReadableDevice], variants: Sequence[tuple[str, int]], groups: Sequence[int]
) -> bool:
    """Prints a report on attention; returns True if all results are those in float64, within a tolerance."""
    count, wrong = 0, []
    for element, head_dim in variants:
        device = device_of(KernelSources.attention((element, head_dim)))
        found = list(passes(device, element, head_dim, groups))
        count += len(found)
        if not all(found):
            wrong.append(f"{element} with head_dim {head_dim} in {found.count(False)} passes")
    if wrong:
        print(f"attention: other results than in float64: {', '.join(wrong)}")
        return False
    print(f"attention has the results of float64 within the tolerance of its element types in {count} passes")
    return True


def attend_any_way(
    device_of: Callable[[KernelSources], ReadableDevice], variants: Sequence[tuple[str, int]], groups: Sequence[int]
) -> bool:
    """Prints a report on the bits of attention; returns True if they never depend on how tokens are computed."""
    found = [
        well
        for variant in variants
        for well in same_bits_any_way(device_of(KernelSources.attention(variant)), *variant, groups)
    ]
    print(f"attention: {found.count(True)} of {len(found)} ways to compute a token have the bits of the whole prompt")
    return all(found)


def replay() -> bool:
    """Prints a report on recorded passes; returns True if all have the results of the launches that were recorded."""
    torch = torch_with_cuda()
    if torch is None:
        print("CUDA graphs: NOT CHECKED, since torch is not there")
        return True
    found = recorded_passes(torch)
    print(f"CUDA graphs: {found.count(True)} of {len(found)} replays have the bits of the launches")
    return all(found)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Check the CUDA kernels on this machine's GPU.")
    parser.add_argument("--rows", type=int, default=100_000, help="random rows to compare")
    parser.add_argument("--wide-rows", type=int, default=256, help="of them, those with 151,936 tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", help="compiled operators to compare with (those on rows are compiled now)")
    parser.add_argument("--shim", action="store_true", help="run the kernels on the CPU, without a GPU")
    parser.add_argument(
        "--threads", type=int, help="of a block; a multiple of 32 (chosen by the work on a GPU, 32 with --shim)"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="of the check on a GPU")
    parser.add_argument("--order", default="forward", help="with --shim: forward, backward or shuffled threads")
    args = parser.parse_args(argv)
    if args.shim:
        print(f"gpu-check-kernels: on the CPU, threads in the order {args.order}; NO GPU IS CHECKED", flush=True)
        well = compare(shim_device(args.order), args.threads or 32, args)
        return 0 if attend(functools.partial(shim_device, args.order), SHIM_VARIANTS, SHIM_GROUPS) and well else 1
    try:
        device = DriverDevice()
    except (CudaError, NvrtcError) as error:
        print(f"gpu-check-kernels: no GPU was found here, and nothing was checked: {error}", file=sys.stderr)
        return NO_GPU
    print(f"gpu-check-kernels: on {device.context.device_name} ({device.context.architecture})", flush=True)
    variants = tuple(itertools.product(ELEMENTS, HEAD_DIMS))
    parts: dict[str, Callable[[], bool]] = {
        "rows": lambda: compare(device, args.threads, args),
        "attention": lambda: attend(DriverDevice, variants, GROUPS),
        "bits": lambda: attend_any_way(DriverDevice, variants, BITS_GROUPS),
        "graphs": replay,
        "times": lambda: print_all(itertools.chain(times(device), attention_times())),
    }
    outcomes = [parts[name]() for name in args.parts]
    return 0 if all(outcomes) else 1


def print_all(lines: Iterable[str]) -> bool:
    """Prints lines as they come; returns True."""
    for line in lines:
        print(line, flush=True)
    return True


def shim_device(order: str, sources: KernelSources | None = None) -> ReadableDevice:
    """The kernels on the CPU; by default those on rows."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    from support.cuda_shim import Order, ShimDevice

    class ReadableShim(ShimDevice):  # type: ignore[misc] # mypy does not look at tests
        def read(self, address: int, target: NDArray[Any]) -> None:
            ctypes.memmove(target.ctypes.data, address, target.nbytes)

    return ReadableShim(Order[order.upper()], sources)


if __name__ == "__main__":
    sys.exit(main())
