"""The directory of converted models."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fastdeploy_lp.checkpoint.errors import CheckpointError

# Incremented when the converter's output for the same GGUF changes, so that old conversions are no longer used.
CONVERTER_VERSION = 3

CONVERTED_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

_SAMPLE_BYTES = 1 << 20


def cache_root() -> Path:
    """$FASTDEPLOY_LP_CACHE, else $XDG_CACHE_HOME/fastdeploy_lp, else ~/.cache/fastdeploy_lp; may not exist yet."""
    if own := os.environ.get("FASTDEPLOY_LP_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).absolute() / "fastdeploy_lp"
    try:
        return Path.home() / ".cache" / "fastdeploy_lp"
    except RuntimeError as error:
        raise CheckpointError("~/.cache: no home directory; set FASTDEPLOY_LP_CACHE to a directory") from error


def converted_directory(
    source: Path,
    convert: Callable[[Path], None],
    *,
    inputs: Sequence[Path] = (),
    needed: Sequence[str] = CONVERTED_FILES,
) -> Path:
    """Returns the cached conversion of `source`; `convert(new_directory)` makes it if it is missing.

    inputs: the files that it depends on if `source` is a directory. needed: the files that it contains.

    A conversion appears whole or not at all, even if several processes request it at once. Conversions of older
    contents of `source` stay: another process may be reading them.

    Raises CheckpointError when `source` cannot be read or the cache cannot be written, and what `convert` raises.
    """
    key = _fingerprint(source, inputs)
    directory = cache_root() / key
    if _is_complete(directory, needed):
        return directory
    try:
        with _locked(directory):
            # Another process may have converted it while this one waited for the lock.
            if not _is_complete(directory, needed):
                _fill(directory, lambda: _fingerprint(source, inputs), convert)
    except OSError as error:
        raise CheckpointError(
            f"{directory}: the converted model cannot be written ({error.strerror or error}); "
            "set FASTDEPLOY_LP_CACHE to a writable directory with room for it"
        ) from error
    return directory


def _fingerprint(source: Path, inputs: Sequence[Path]) -> str:
    """Returns a directory name that changes when the file does.

    Hashing gigabytes at every start would be slow. A rewritten file has another modification time; a file put in
    place with its old time differs in size, in the metadata at its head, or in the weights at its tail.
    """
    digest = hashlib.sha256(f"{CONVERTER_VERSION} ".encode())
    for path in inputs or (source,):
        try:
            with path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                digest.update(f"{status.st_size} {status.st_mtime_ns} ".encode())
                digest.update(stream.read(_SAMPLE_BYTES))
                stream.seek(max(0, status.st_size - _SAMPLE_BYTES))
                digest.update(stream.read(_SAMPLE_BYTES))
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror}); give a readable file") from error
    return f"{source.absolute().stem}-{digest.hexdigest()[:16]}"


def _is_complete(directory: Path, needed: Sequence[str]) -> bool:
    return all((directory / name).is_file() for name in needed)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f".{directory.name}.lock").open("w") as stream:
        # The kernel releases the lock when the holder ends, even after a crash.
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _fill(directory: Path, key_now: Callable[[], str], convert: Callable[[Path], None]) -> None:
    """Converts into a sibling and renames it into place, under the caller's lock. `key_now` returns the current key."""
    # Only the lock holder writes here, so these were left by a killed process.
    for leftover in directory.parent.glob(f".{glob.escape(directory.name)}.*.partial"):
        shutil.rmtree(leftover)
    partial = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.partial")
    partial.mkdir()
    try:
        convert(partial)
        if key_now() != directory.name:
            raise CheckpointError(
                f"{directory.name}: its source changed while it was converted; give a model that is not being written"
            )
        if directory.exists():
            # Incomplete: files were removed. A rename replaces only an empty directory.
            shutil.rmtree(directory)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
