"""`fastdeploy-lp collect-env`: prints the information for a problem report."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastdeploy_lp.entrypoints.usage import CommandParser
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.plugins import PluginGroup, installed_plugins
from fastdeploy_lp.version import __version__

PACKAGES = (
    "paddlepaddle",
    "paddlepaddle-gpu",
    "fastapi",
    "gguf",
    "httptools",
    "jinja2",
    "msgspec",
    "numpy",
    "pydantic",
    "pyzmq",
    "safetensors",
    "starlette",
    "tokenizers",
    "uvicorn",
    "uvloop",
    "torch",
    "vllm",
)
# Variables that affect a worker's computation; the report omits all others.
VARIABLES = re.compile(r"(FASTDEPLOY_LP|FLAGS|OMP|GOMP|MKL|KMP|MALLOC|GLIBC|CUDA)_\w+|CXX|PYTHONPATH")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
FEATURES = re.compile(r"avx\w*|amx\w*|fma|f16c|sse4_[12]|asimd\w*|sve\w*|bf16|i8mm")
OPS_SECONDS = 60.0


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Prints the information, without values of secrets."""
    CommandParser(
        prog=prog, description="Show versions, processor and settings, for a report of a problem. Secrets are left out."
    ).parse_args(argv)
    for title, lines in _sections():
        print(f"{title}:")
        print("\n".join(f"  {line}" for line in lines or ["none"]))
    return 0


def _sections() -> Iterator[tuple[str, list[str]]]:
    yield "Software", _software()
    yield "Processor", _processor()
    yield "Compiled operators", _compiled_operators().splitlines()
    yield from _platform()
    yield "Installed plugins", _plugins()
    yield "Environment", _pairs({name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)})


def _software() -> list[str]:
    own = [f"fastdeploy-lp {__version__} in {Path(__file__).parents[2]}"]
    own.append(f"Python {platform.python_version()} ({platform.python_implementation()}) in {sys.prefix}")
    own.append(f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}")
    return own + [f"{name} {found}" for name in PACKAGES if (found := _version(name)) is not None]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> list[str]:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    name = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    features = sorted(word for word in (flags.group(1).split() if flags else []) if FEATURES.fullmatch(word))
    return [
        f"{name.group(1) if name else platform.processor() or 'unknown'} ({platform.machine()})",
        f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores may be used",
        f"features: {' '.join(features) or 'unknown'}",
    ]


def _platform() -> Iterator[tuple[str, list[str]]]:
    """Reports the platform's error too, since an unusable platform plugin may be the problem."""
    try:
        found = current_platform()
    except ValueError as error:
        yield "Platform", [str(error)]
    else:
        free = found.free_memory() / 2**30
        yield "Platform", [f"{found.name}: {found.device_name}", f"{free:.1f} GiB of memory are free"]
        yield "Worker's settings", _pairs(found.worker_environment())


def _compiled_operators() -> str:
    """Reads the operators' state in a subprocess, since this process does not load the model code."""
    command = [sys.executable, "-m", "fastdeploy_lp.model_executor.ops"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=OPS_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    return (done.stdout if done.returncode == 0 else f"unknown: {done.stderr}").strip()


def _plugins() -> list[str]:
    """Lists plugins by name only: loading them may fail, which may be the reported problem."""
    return [f"{plugin} = {plugin.value}" for group in PluginGroup for plugin in installed_plugins(group)]


def _pairs(settings: Mapping[str, str]) -> list[str]:
    return [f"{name}={'***' if SECRET.search(name) else value}" for name, value in sorted(settings.items())]
