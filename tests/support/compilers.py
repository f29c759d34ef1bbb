"""Compilers for tests that build the operators: the machine's own, made to fail or to save time."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

# Compiles what was compiled before in no time: what is compiled, but for empty lines, and the arguments, but for the
# folders in them, name the result. It appears whole. Links each time, with the sources that are given then.
CACHED = """
out=; last=; compiles=
for each; do
    [ "$last" = -o ] && out=$each
    [ "$last" = -I ] && folder=$each
    [ "$each" = -c ] && compiles=1
    last=$each
done
if [ -z "$compiles" ]; then
    echo run >> "RUNS"
    exec COMPILER "$@" -O0
fi
sum=$( (
    for each; do [ "$each" = "$out" ] || echo "${each##*/}"; done
    find "$folder" -type f | sort | xargs cat | grep -v '^$'
) | cksum | tr ' ' _)
kept="COMPILED/$sum.o"
if [ ! -e "$kept" ]; then
    COMPILER "$@" -O0 && cp "$out" "$kept.$$" && mv "$kept.$$" "$kept"
    exit
fi
cp "$kept" "$out"
"""


def installed_compiler() -> str:
    """A C++ compiler of this machine; the test is skipped where there is none."""
    found = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler on this machine")
    return found


def quick_compiler(directory: Path) -> Path:
    """The machine's compiler without optimization, run once for the same source: the same library otherwise.

    Every library that it links leaves a line in `runs.txt` beside it.
    """
    cached = CACHED.replace("COMPILED", str(_compiled())).replace("COMPILER", f'"{installed_compiler()}"')
    return _script(directory, cached.replace("RUNS", f"{directory}/runs.txt"))


def runs(directory: Path) -> int:
    """How many libraries the quick compiler in this directory has linked."""
    log = directory / "runs.txt"
    return len(log.read_text().splitlines()) if log.exists() else 0


def partial_compiler(directory: Path, *names: str) -> Path:
    """The machine's compiler, for which all sources but those of these names are empty: a library that can be loaded.

    For tests of how a library is packaged and found; what is left out of it cannot be called.
    """
    compiler = installed_compiler()
    return _script(
        directory,
        f"""
for last; do :; done
case " $* " in *" -c "*) ;; *) exec "{compiler}" "$@" ;; esac
case "${{last##*/}}" in {"|".join(names)}) exec "{compiler}" "$@" -O0 ;; esac
while [ "$1" != -o ]; do shift; done
exec "{compiler}" -c -x c++ -o "$2" /dev/null
""",
    )


def dying_compiler(directory: Path) -> Path:
    """One that is killed when half of its output is written."""
    return _script(
        directory,
        'while [ "$1" != "-o" ]; do shift; done\nhead -c 4000 /dev/zero > "$2"\nkill -9 $$',
    )


@cache
def _compiled() -> Path:
    """A folder for what the compilers of this run of tests made, removed at its end."""
    folder = tempfile.TemporaryDirectory(prefix="compiled-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _script(directory: Path, body: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
