"""The machine code of products in AMX's tiles, run on processors without them: each tile instruction is interpreted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.compilers import installed_compiler
from support.server import REPOSITORY, TESTS
from support.tiles import machine_unit

from fastdeploy_lp.model_executor.ops.build import FLAGS, SOURCE_DIRECTORY
from fastdeploy_lp.model_executor.ops.tiles import TileUnit

pytestmark = pytest.mark.usefixtures("ops")

AMX_FLAGS = ("-mamx-tile", "-mamx-int8", "-mamx-bf16")
HARNESS = (REPOSITORY / "benchmarks" / "native" / "products.cpp", TESTS / "support" / "tile_traps.cpp")
# Of the weights that the program multiplies with: the code of all formats takes two minutes to optimize. A format that
# is unpacked first adds 12 seconds, and has the same tile instructions.
FORMATS = {"-O0": ("bfloat16", "levels8", "levels4"), "-O3": ("bfloat16", "levels8")}
# Products on vectors, which the program does not run: they need no optimization.
VECTORS = '#include "decoder/products.h"\n'
INSTRUCTIONS = ("ldtilecfg", "tilezero", "tileloadd", "tilestored", "tdpbsud", "tdpbf16ps", "tilerelease")
# Shapes with partial groups and panels, in one part and in two; rows with and without a block that overlaps.
PROGRAM = """
import ctypes, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import engine_native as native, numpy as np
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.model_executor.ops.packed_weight import WeightFormat

library, before = Path(sys.argv[1]), 0
formats = [WeightFormat[name.upper()] for name in sys.argv[2:]]
harness = ctypes.CDLL(str(library))
for digits in (0, 1, 2):
    for packed in formats[1:] if digits else formats[:1]:
        shapes = [native.Shape(40, 70, packed), native.Shape(800, 33, packed)]
        products = native.OurProducts(library, compiled_ops(), shapes, digits, bfloat16=digits == 0)
        for rows in (64, 69):
            harness.bench_choose_tiles(1)
            of_rows = products.rows(rows)
            of_rows.multiply()
            expected = of_rows.outputs
            harness.traps_install()
            # The same activations, in the order in which tiles read them.
            of_rows = products.rows(rows)
            of_rows.multiply()
            interpreted = harness.traps_interpreted()
            assert interpreted > before and harness.traps_configured() == 0, (interpreted, harness.traps_configured())
            before = interpreted
            for shape in shapes:
                bits, wanted = (each[shape].view(np.uint32) for each in (of_rows.outputs, expected))
                np.testing.assert_array_equal(bits, wanted, str((digits, packed, rows, shape)))
print("same bits")
"""


def compile_for_amx(target: Path, formats: Sequence[str], *arguments: str) -> None:
    """Compiles for these formats, all if there are none, as on a processor with AMX.

    Skips the test if the compiler does not know AMX.
    """
    named = [f"-DFDLP_FORMATS={' '.join(map('FDLP_FORMAT({})'.format, formats))}"] if formats else []
    command = [
        installed_compiler(),
        *FLAGS,
        *AMX_FLAGS,
        "-I",
        str(SOURCE_DIRECTORY),
        *named,
        *arguments,
        "-o",
        str(target),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "-mamx" in done.stderr:
        pytest.skip("the compiler does not know AMX")
    assert done.returncode == 0, done.stderr


def compiled_vectors(folder: Path, formats: Sequence[str]) -> list[str]:
    """Returns the compiler's arguments for a harness that links products on vectors, compiled without optimization."""
    source, compiled = folder / "vectors.cpp", folder / "vectors.o"
    source.write_text(VECTORS + " ".join(map("FDLP_TILES_OF({})".format, formats)))
    compile_for_amx(compiled, formats, "-c", str(source), "-O0")
    return ["-include", "decoder/products.h", str(compiled)]


def test_the_library_has_the_instructions(tmp_path: Path) -> None:
    """Its sources that multiply in tiles or choose them compile as on a processor with AMX."""
    if (objdump := shutil.which("objdump")) is None:
        pytest.skip("no objdump on this machine")
    library = tmp_path / "ops.so"
    sources = [str(SOURCE_DIRECTORY / "decoder" / name) for name in ("decoder.cpp", "tile_unit.cpp")]
    compile_for_amx(library, (), *sources, "-O0")
    code = subprocess.run([objdump, "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True)
    words = {line.split("\t")[1].split()[0] for line in code.stdout.splitlines() if line.count("\t") > 0}
    assert words >= set(INSTRUCTIONS)


@pytest.mark.parametrize("optimization", FORMATS)
def test_the_machine_code_gives_the_same_bits(tmp_path: Path, optimization: str) -> None:
    """On three threads, each of which configures its tiles and releases them."""
    if machine_unit() is not TileUnit.NO_PROCESSOR:
        pytest.skip("this processor has AMX: its instructions are not trapped, and test_tiles.py runs them")
    library, formats = tmp_path / "products.so", FORMATS[optimization]
    separate = [] if optimization == "-O0" else compiled_vectors(tmp_path, formats)
    compile_for_amx(library, formats, *map(str, HARNESS), *separate, optimization)
    paths = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "benchmarks")))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library), *formats],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "3"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "same bits"
