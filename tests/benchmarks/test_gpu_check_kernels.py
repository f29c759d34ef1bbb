"""The check of the kernels, with the kernels on the CPU: they return the bits of the compiled operators.

`benchmarks/gpu_check_kernels.py --shim` compares more rows, and without `--shim` it runs the same comparison on a GPU.
`test_row_ops.py` and its neighbors hold each operation against numpy, with the kernels as well.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from gpu_check_kernels import NO_GPU, differences, shim_device
from kernel_cases import KINDS, SIZES, WIDE, case, cases
from kernel_sides import OPERATIONS, CompiledSide, KernelSide, Side, same_bits
from support.server import REPOSITORY, server_environment

from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.model_executor.ops.cuda.driver import Context, CudaError
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources
from fastdeploy_lp.model_executor.ops.row_ops import Cut

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")


@pytest.fixture(scope="module")
def compiled() -> Side:
    library = compiled_ops()
    if library is None:
        pytest.skip("no compiled operators here")
    return CompiledSide(library)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "threads", "rows"),
    [("backward", 64, 96), ("shuffled", 256, 50), ("shuffled", 1024, 8)],
)
def test_random_rows_get_the_bits_of_the_cpu(compiled: Side, order: str, threads: int, rows: int) -> None:
    assert differences(KernelSide(shim_device(order), threads), compiled, cases(rows, threads, wide_rows=0)) == {}


def test_rows_of_every_size_get_the_bits_of_the_cpu(compiled: Side) -> None:
    random = np.random.default_rng(32)
    given = (case(random, 4, size) for size in SIZES)
    assert differences(KernelSide(shim_device("forward"), 32), compiled, given) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "rows"), [(64, 3), (1024, 2)])
def test_a_whole_vocabulary_gets_the_bits_of_the_cpu(compiled: Side, threads: int, rows: int) -> None:
    random = np.random.default_rng(threads)
    assert differences(KernelSide(shim_device("forward"), threads), compiled, [case(random, rows, WIDE)]) == {}


def test_the_cases_have_every_kind_of_row_and_every_cut() -> None:
    given = list(cases(3_000, 0, wide_rows=0))
    rows = [row for each in given for row in each.logits if len(row) > 2]
    assert {each.cut for each in given} == set(Cut)
    assert any(np.isneginf(row).all() for row in rows)
    assert any(np.isnan(row).any() for row in rows)
    assert any(np.isfinite(row).sum() == 1 and np.isneginf(row).any() for row in rows)
    assert any((row == row[0]).all() and np.isfinite(row[0]) for row in rows)
    assert any((np.signbit(row) & (row == 0)).any() and (~np.signbit(row) & (row == 0)).any() for row in rows)
    assert any(len(np.unique(row)) < len(row) / 2 for row in rows)
    assert len(KINDS) == 12
    assert next(cases(3, 0, wide_rows=3)).logits.shape == (3, WIDE)


def test_a_difference_of_one_bit_is_one(compiled: Side) -> None:
    assert not same_bits([np.array([0.0, 1.0], np.float32)], [np.array([-0.0, 1.0], np.float32)])
    assert not same_bits([np.array([1.0])], [np.nextafter([1.0], 2)])
    assert not same_bits([np.array([1, 2])], [np.array([1, 3])])
    assert same_bits([np.array([np.nan, -np.inf])], [np.array([-np.nan, -np.inf])])


# By file of kernels, what is right, what is wrong, and whose results differ then.
PLANTED = {
    "filters.cuh": ("(missing + each - 1) / each", "(missing + each) / each", {"draw", "filtered"}),
    "logprobs.cuh": ("greater += logit > own;", "greater += logit >= own;", {"logprobs", "logits_listed"}),
    "strips.cuh": ("l < kLanes", "l < kLanes - 1", {"compare", "cut"}),
    "edits.cuh": ("if (counts[at] > 0) logit -= present;", "logit -= present;", {"penalize"}),
}


def test_planted_mistakes_are_found(compiled: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = KernelSources.read().headers
    for file, (right, wrong, _) in PLANTED.items():
        assert headers[file].count(right) == 1
        headers[file] = headers[file].replace(right, wrong)
    planted = KernelSources(KernelSources.read().main, headers)
    monkeypatch.setattr(KernelSources, "read", lambda: planted)
    found = differences(KernelSide(shim_device("forward"), 32), compiled, cases(64, 4, wide_rows=0))
    assert set(found) == {operation for _, _, operations in PLANTED.values() for operation in operations}


def test_every_kernel_is_part_of_the_comparison() -> None:
    """Names of operations are not those of kernels, so each launch is seen."""
    launched: set[str] = set()

    class Watched:
        def __init__(self) -> None:
            self._device = shim_device("forward")

        def launch(self, kernel: str, *arguments: object) -> None:
            launched.add(kernel)
            self._device.launch(kernel, *arguments)

        def __getattr__(self, name: str) -> object:
            return getattr(self._device, name)

    side, random = KernelSide(Watched(), 32), np.random.default_rng(1)
    for cut in Cut:
        given = replace(case(random, 8, 40), cut=cut, cut_values=np.full(8, 0.3, np.float32))
        for name in OPERATIONS:
            getattr(side, name)(given)
    assert sorted(launched) == KernelSources.read().kernels


PROGRAM = REPOSITORY / "benchmarks" / "gpu_check_kernels.py"
OPTIONS = ("--shim", "--rows", "40", "--wide-rows", "0")


def test_a_machine_without_a_gpu_is_told_with_a_status_of_its_own() -> None:
    if driver_is_there():
        pytest.skip("this machine has a GPU")
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, env=server_environment())
    assert done.returncode == NO_GPU == 77
    assert done.stderr.startswith("gpu-check-kernels: no GPU was found here, and nothing was checked: ")
    assert done.stdout == ""


def driver_is_there() -> bool:
    try:
        Context.of_device(0)
    except CudaError:
        return False
    return True


@pytest.fixture
def _imports_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process without Paddle, and without the package and the benchmarks until they are imported once more."""
    roots = {"fastdeploy_lp", "paddle", *(path.stem for path in PROGRAM.parent.glob("*.py"))}

    def imported() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] in roots]

    for name in imported():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "paddle", None)
    yield
    # Also those that no other test has imported yet: they are of these modules' generation.
    for name in imported():
        del sys.modules[name]


@pytest.mark.usefixtures("_imports_anew")
def test_the_program_reports_and_needs_no_paddle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has compiled the kernels on rows."""
    library = compiled_ops()
    if library is None:
        pytest.skip("no compiled operators here")
    monkeypatch.setattr(sys, "argv", ["", *OPTIONS, "--library", str(library._name)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    assert ended.value.code == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "gpu-check-kernels: on the CPU, threads in the order forward; NO GPU IS CHECKED"
    assert second == "15 operations have the CPU's bits on 40 random rows, 0 of them with 151,936 tokens"
    assert third == "attention has the results of float64 within the tolerance of its element types in 6 passes"
