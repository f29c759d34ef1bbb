"""Checks the CUDA kernels on a GPU against the compiled operators of the CPU, bit by bit, and times them.

It needs the driver, the package of NVIDIA's runtime compiler and a C++ compiler, but no Paddle. Exits with status 0 if
all results have the CPU's bits, 1 if some have not, and 77, having checked nothing, on a machine without a GPU. With
`--shim` the kernels run on the CPU instead, and are not timed.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kernel_cases import Case, cases
from kernel_device import DriverDevice
from kernel_sides import OPERATIONS, CompiledSide, KernelSide, ReadableDevice, Side, same_bits
from kernel_times import times
from numpy.typing import NDArray

from fastdeploy_lp.model_executor.ops.cuda.driver import CudaError
from fastdeploy_lp.model_executor.ops.cuda.nvrtc import NvrtcError

NO_GPU = 77
PROGRESS_SECONDS = 20.0


def differences(mine: Side, theirs: Side, given: Iterable[Case]) -> Counter[str]:
    """Returns how many batches of each operation have other bits on one side than on the other."""
    found: Counter[str] = Counter()
    for each in given:
        for name in OPERATIONS:
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


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Check the CUDA kernels on this machine's GPU.")
    parser.add_argument("--rows", type=int, default=100_000, help="random rows to compare")
    parser.add_argument("--wide-rows", type=int, default=256, help="of them, those with 151,936 tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", help="compiled operators to compare with (those on rows are compiled now)")
    parser.add_argument("--shim", action="store_true", help="run the kernels on the CPU, without a GPU")
    parser.add_argument(
        "--threads", type=int, help="of a block; a multiple of 32 (chosen by the rows on a GPU, 32 with --shim)"
    )
    parser.add_argument("--order", default="forward", help="with --shim: forward, backward or shuffled threads")
    args = parser.parse_args(argv)
    if args.shim:
        print(f"gpu-check-kernels: on the CPU, threads in the order {args.order}; NO GPU IS CHECKED", flush=True)
        return 0 if compare(shim_device(args.order), args.threads or 32, args) else 1
    try:
        device = DriverDevice()
    except (CudaError, NvrtcError) as error:
        print(f"gpu-check-kernels: no GPU was found here, and nothing was checked: {error}", file=sys.stderr)
        return NO_GPU
    print(f"gpu-check-kernels: on {device.context.device_name} ({device.context.architecture})", flush=True)
    well = compare(device, args.threads, args)
    for line in times(device):
        print(line, flush=True)
    return 0 if well else 1


def shim_device(order: str) -> ReadableDevice:
    """The kernels on the CPU."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    from support.cuda_shim import Order, ShimDevice

    class ReadableShim(ShimDevice):  # type: ignore[misc] # mypy does not look at tests
        def read(self, address: int, target: NDArray[Any]) -> None:
            ctypes.memmove(target.ctypes.data, address, target.nbytes)

    return ReadableShim(Order[order.upper()])


if __name__ == "__main__":
    sys.exit(main())
