"""Contenders of both sections of the page, from the programs and files that the options name."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastdeploy_lp.checkpoint import ModelFiles, resolve_model
from peers.contender import (
    OUR_SERVER,
    REPOSITORY,
    Contender,
    hugging_face_contender,
    llama_contender,
    our_contender,
    vllm_contender,
    without_folders,
)
from peers.instructions import output_of
from peers.section import BILLION, DEFAULT_MODEL, Section

# Files of `--billion` and of `--peers`, as `peers/install.py` writes them.
Q4_K_M, BFLOAT16, W8A8 = "Q4_K_M.gguf", "bfloat16", "w8a8"
VLLM, LLAMA_SERVER, FLOAT32, BILLION_FOLDER = "vllm", "llama-server", "float32.gguf", "billion"
TCMALLOC = "libtcmalloc_minimal.so.4"


@dataclass(frozen=True)
class Lineup:
    """Section, model and contenders of a run; `tokenizer` is the file that measures the long prompts."""

    section: Section
    model: str
    tokenizer: Path
    contenders: list[Contender]


def lineup(args: argparse.Namespace) -> Lineup:
    """Every server that the options name, ours first; raises CheckpointError where the model is not on this machine."""
    if args.billion is not None:
        directory: Path = args.billion
        found = [*_our_billion(args, directory), *_peers_of_billion(args, directory)]
        name = "Llama of 1.07 billion random parameters"
        return Lineup(BILLION, name, directory / BFLOAT16 / "tokenizer.json", found)
    files = resolve_model(args.model)
    ours = [our_contender(args.model, precision) for precision in our_precisions(args)]
    found = [*ours, *_peers(args, files)]
    return Lineup(DEFAULT_MODEL, Path(args.model).name, files.directory / "tokenizer.json", found)


def our_precisions(args: argparse.Namespace) -> list[str]:
    """The precisions asked for; else the section's own, and bfloat16 where our server has it."""
    if args.ours is not None:
        return list(args.ours)
    return [*(["w8a8"] if args.billion else ["float32", "w8a8"]), *(["bfloat16"] if _has_bfloat16() else [])]


def use_installed(args: argparse.Namespace) -> None:
    """Fills the options that were not given from the folder of `--peers`."""
    folder: Path = args.peers.resolve()
    python, openmp = folder / VLLM / "bin" / "python", folder / VLLM / "lib" / "libiomp5.so"
    if args.vllm_python is None and python.exists():
        args.vllm_python = str(python)
        # As vLLM's guide says.
        tcmalloc = [path for path in (Path("/usr/lib/x86_64-linux-gnu") / TCMALLOC,) if path.exists()]
        preloaded = [str(path) for path in (*tcmalloc, openmp) if path.exists()]
        args.vllm_env = [("LD_PRELOAD", ":".join(preloaded)), *args.vllm_env]
    if args.llama_server is None and (folder / LLAMA_SERVER).exists():
        args.llama_server = str(folder / LLAMA_SERVER)
    if args.billion is not None:
        return
    if args.vllm_dtype is None:
        args.vllm_dtype = ["float32", "bfloat16"]
    if args.vllm_w8a8 is None and (folder / W8A8).is_dir():
        args.vllm_w8a8 = folder / W8A8
    if args.llama_gguf is None and (folder / FLOAT32).exists():
        source = resolve_model(args.model).source
        own = [(source.stem.rpartition(".")[2], source)] if source.suffix == ".gguf" else []
        args.llama_gguf = [*own, ("float32", folder / FLOAT32)]


def _our_billion(args: argparse.Namespace, directory: Path) -> Iterator[Contender]:
    for precision in our_precisions(args):
        if precision != "bfloat16":
            yield our_contender(str(directory / Q4_K_M), precision, "Q4_K_M")
        yield our_contender(str(directory / BFLOAT16), precision, "bfloat16")


def _peers_of_billion(args: argparse.Namespace, directory: Path) -> Iterator[Contender]:
    quantized = args.vllm_w8a8 or (directory / W8A8 if (directory / W8A8).is_dir() else None)
    dtypes = ["bfloat16"] if args.vllm_dtype is None else args.vllm_dtype
    yield from _vllm(args, directory / BFLOAT16, dtypes, quantized)
    yield from _llama(args, [("Q4_K_M", directory / Q4_K_M)])


def _peers(args: argparse.Namespace, files: ModelFiles) -> Iterator[Contender]:
    dtypes = ["float32"] if args.vllm_dtype is None else args.vllm_dtype
    yield from _vllm(args, files.directory, dtypes, args.vllm_w8a8)
    source = files.source
    yield from _llama(args, [(source.stem.rpartition(".")[2], source)] if source.suffix == ".gguf" else [])
    if args.hf:
        code = "import transformers, torch; print('transformers', transformers.__version__, 'torch', torch.__version__)"
        version = _version(sys.executable, "-c", code)
        yield dataclasses.replace(hugging_face_contender(files.directory), version=version)


def _vllm(args: argparse.Namespace, directory: Path, dtypes: list[str], quantized: Path | None) -> Iterator[Contender]:
    if not args.vllm_python:
        return
    version = _version(args.vllm_python, "-c", "import importlib.metadata as m; print(m.version('vllm'))")
    environment = dict(args.vllm_env)
    for dtype in dtypes:
        vllm = vllm_contender(args.vllm_python, directory, dtype, environment)
        yield dataclasses.replace(vllm, version=version)
    if quantized is None:
        return
    for activations in args.vllm_w8a8_dtype:
        vllm = vllm_contender(args.vllm_python, quantized, "w8a8", environment, activations)
        # Two entries of one precision need different names.
        several = f"int8 with {activations}" if len(args.vllm_w8a8_dtype) > 1 else ""
        yield dataclasses.replace(vllm, version=version, source=several)


def _llama(args: argparse.Namespace, own: list[tuple[str, Path]]) -> Iterator[Contender]:
    if not args.llama_server:
        return
    version = _version(args.llama_server, "--version")
    for precision, gguf in own if args.llama_gguf is None else args.llama_gguf:
        yield dataclasses.replace(llama_contender(args.llama_server, gguf, precision), version=version)


def _has_bfloat16() -> bool:
    """Returns True if our server takes `--dtype bfloat16`."""
    environment = {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
    options = output_of([sys.executable, "-m", OUR_SERVER, "--help"], environment).split("--")
    return any(option.startswith("dtype") and "bfloat16" in option for option in options)


def _version(*command: str) -> str:
    """Version output of a program, on one line; empty if it does not start."""
    lines = output_of(command).splitlines()
    return without_folders(next((line for line in lines if "version" in line), lines[0] if lines else ""))
