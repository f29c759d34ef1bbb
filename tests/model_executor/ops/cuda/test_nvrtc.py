"""NVIDIA's compiler takes the kernels, without a GPU.

By default those of some pairs of element type and head size, for the oldest of three generations of GPUs; with
`-m long` all of them, for each.
"""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
from support.tiny_kernels import TINY

from fastdeploy_lp.model_executor.ops.cuda import nvrtc
from fastdeploy_lp.model_executor.ops.cuda.cubins import cubin_for
from fastdeploy_lp.model_executor.ops.cuda.nvrtc import Nvrtc, NvrtcError
from fastdeploy_lp.model_executor.ops.cuda.sources import ELEMENTS, HEAD_DIMS, KernelSources

# Of an ELF file: its magic number, and the number of CUDA's machines at byte 18.
MAGIC, CUDA_MACHINE = b"\x7fELF", 190
# Each element type and each size of heads, and with those that test_attention.py compiles for the CPU all pairs. The
# longest heads with float32 need the most memory.
PAIRS = (("float16", 32), ("float16", 96), ("float16", 128), ("bfloat16", 64), ("float32", 64), ("float32", 128))
SOURCES = {
    "rows": (KernelSources.read(), 24),
    "pairs": (KernelSources.attention(*PAIRS), 4 * len(PAIRS)),
    **{
        element: (KernelSources.attention(*itertools.product([element], HEAD_DIMS)), 4 * len(HEAD_DIMS))
        for element in ELEMENTS
    },
}
# No kernel asks for its architecture. Each takes half a minute; the oldest one has the fewest instructions.
COMPILED = [
    pytest.param(name, architecture, marks=[] if short else pytest.mark.long)
    for architecture, names in {"sm_80": ("rows", "pairs"), "sm_90": (), "sm_100": ()}.items()
    for name in SOURCES
    for short in [name in names]
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "architecture"), COMPILED)
def test_every_kernel_compiles(name: str, architecture: str) -> None:
    """By the way of a start: from the cache if these sources were compiled by this compiler before."""
    sources, count = SOURCES[name]
    cubin = cubin_for(architecture, sources)
    assert cubin.startswith(MAGIC)
    assert int.from_bytes(cubin[18:20], "little") == CUDA_MACHINE
    assert len(sources.kernels) == count
    for name in sources.kernels:
        assert f".text.{name}".encode() in cubin


def test_a_mistake_is_told_with_the_compilers_words() -> None:
    broken = KernelSources('#include "tiny.cuh"\nint x = undeclared;', TINY.headers)
    with pytest.raises(
        NvrtcError, match=r'(?s)NVRTC 1\d\.\d+ failed for sm_90: .*identifier "undeclared" is undefined'
    ):
        Nvrtc().compile(broken, "sm_90")


def test_a_device_that_the_compiler_does_not_know_is_named() -> None:
    with pytest.raises(NvrtcError, match=r"does not compile for sm_10; it compiles for sm_\d+, "):
        Nvrtc().compile(TINY, "sm_10")


def test_without_the_compiler_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "PACKAGE_DIRECTORIES", ("nvidia.absent", "absent"))
    monkeypatch.setattr(nvrtc, "LIBRARIES", ("libabsent.so.1",))
    nvrtc._library.cache_clear()
    try:
        with pytest.raises(NvrtcError, match=r"the package nvidia-cuda-nvrtc-cu12, of the extra fastdeploy-lp\[gpu\]"):
            Nvrtc()
    finally:
        nvrtc._library.cache_clear()


# The compiler's library loads another one by its name when it is first used.
COMPILER = """
#include <dlfcn.h>
const char* nvrtcGetErrorString(int status) { return status ? "no builtins" : "none"; }
int nvrtcVersion(int* major, int* minor) {
    *major = 13, *minor = 0;
    return !dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW);
}
"""


def test_the_builtins_of_a_package_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "stand_in_of_cuda_13" / "lib"
    folder.mkdir(parents=True)
    for name, text in {"libnvrtc.so.13": COMPILER, "libnvrtc-builtins.so.13.0": "int builtins;"}.items():
        command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-xc", "-", "-o", str(folder / name), "-ldl"]
        subprocess.run(command, input=text, text=True, check=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(nvrtc, "PACKAGE_DIRECTORIES", (folder.parent.name,))
    nvrtc._library.cache_clear()
    try:
        assert Nvrtc().version == "13.0"
    finally:
        nvrtc._library.cache_clear()
