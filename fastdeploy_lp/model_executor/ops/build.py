"""Compiles the C++ operators for this very processor.

Imports nothing but the standard library: `setup.py` and `make` run this file before anything is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE_DIRECTORY = Path(__file__).parent / "csrc"
PACKAGED_DIRECTORY = Path(__file__).parent / "compiled"

FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    # A product and a sum become one instruction; nothing else is reordered, and NaN and infinity keep their meaning.
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
)


class BuildError(RuntimeError):
    """The operators could not be compiled; the message states the reason."""


def library_name() -> str:
    """The file name of the library for these sources, these flags and this processor."""
    digest = hashlib.sha256("\0".join([*FLAGS, platform.machine(), _cpu_features()]).encode())
    for source in sorted(path for path in SOURCE_DIRECTORY.rglob("*") if path.is_file()):
        digest.update(source.relative_to(SOURCE_DIRECTORY).as_posix().encode() + b"\0" + source.read_bytes())
    return f"ops-{digest.hexdigest()[:16]}.so"


def compiler() -> list[str]:
    """Returns the command that `CXX` names, which may have arguments ("ccache g++"), else the first compiler on PATH.

    Raises BuildError if there is none.
    """
    given = shlex.split(os.environ.get("CXX", ""))
    names = given[:1] or ["g++", "c++", "clang++"]
    for name in names:
        if found := shutil.which(name):
            return [found, *given[1:]]
    raise BuildError(f"no C++ compiler ({', '.join(names)}) on PATH")


def compile_library(directory: Path) -> Path:
    """Compile into `directory`, where the library appears whole or not at all; returns its path.

    Raises BuildError when there is no compiler, it fails, or `directory` cannot be written.
    """
    target = directory / library_name()
    partial = directory / f".{target.stem}.{secrets.token_hex(4)}.partial"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        compile_files(sorted(SOURCE_DIRECTORY.rglob("*.cpp")), partial)
        # Regardless of the caller's umask: no other user may change a file that many processes load.
        partial.chmod(0o755)
        partial.rename(target)
    except OSError as error:
        raise BuildError(f"{directory}: {error}") from error
    finally:
        # If `directory` is not writable, this removal fails too; the error above already reports it.
        with contextlib.suppress(OSError):
            partial.unlink()
    return target


def compile_files(sources: list[Path], library: Path) -> None:
    """Compiles some of the sources to a library, on all cores; raises BuildError without a compiler or if it fails."""
    command = compiler()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [Path(folder) / f"{number}.o" for number in range(len(sources))]
        flags = [*FLAGS, "-I", str(SOURCE_DIRECTORY), "-c"]
        calls = [[*command, *flags, "-o", str(to), str(source)] for to, source in zip(objects, sources, strict=True)]
        list(pool.map(_run, calls))
        _run([*command, *FLAGS, "-o", str(library), *map(str, objects)])


def compile_packaged() -> None:
    """Compiles into the package if the library is missing there; prints on stderr why it cannot.

    The worker tries again on first use.
    """
    try:
        if not (PACKAGED_DIRECTORY / library_name()).is_file():
            compile_library(PACKAGED_DIRECTORY)
    except BuildError as error:
        sys.stderr.write(f"compiled operators are left out: {error}\n")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} ended with status {done.returncode}: {done.stderr.strip()[-2000:]}")


def _cpu_features() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return platform.processor()
    return cpuinfo.read_text().partition("\nflags")[2].partition("\n")[0]


if __name__ == "__main__":
    compile_packaged()
