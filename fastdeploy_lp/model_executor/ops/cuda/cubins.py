"""The kernels' machine code, compiled once for a kind of device and kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import time
from pathlib import Path

from fastdeploy_lp.checkpoint.cache import cache_root
from fastdeploy_lp.model_executor.ops.cuda.nvrtc import OPTIONS, Nvrtc
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources
from fastdeploy_lp.model_executor.ops.own_files import make_own, require_own

logger = logging.getLogger(__name__)


def cubin_for(architecture: str, sources: KernelSources) -> bytes:
    """Returns machine code for a device such as "sm_90", from the cache or compiled now.

    Raises NvrtcError if it cannot be compiled, UntrustedFileError if another user can have written the cache, OSError
    if it cannot be written.
    """
    compiler = Nvrtc()
    path = cache_directory() / cubin_name(architecture, sources, compiler.version)
    if path.is_file():
        return require_own(path).read_bytes()
    began = time.monotonic()
    cubin = compiler.compile(sources, architecture)
    _keep(cubin, path)
    logger.info("compiled the kernels for %s in %.0f s: %s", architecture, time.monotonic() - began, path)
    return cubin


def cubin_name(architecture: str, sources: KernelSources, version: str) -> str:
    """The file name of the code of these sources, this device and this release of the compiler."""
    digest = hashlib.sha256("\0".join([sources.digest, version, *OPTIONS]).encode()).hexdigest()
    return f"kernels-{architecture}-{digest[:16]}.cubin"


def cache_directory() -> Path:
    """The directory of compiled kernels, which may not exist yet."""
    return cache_root() / "cuda"


def _keep(cubin: bytes, path: Path) -> None:
    """Writes the file whole or not at all, since several workers may start at once."""
    directory = make_own(path.parent)
    partial = directory / f".{path.stem}.{secrets.token_hex(4)}.partial"
    try:
        partial.write_bytes(cubin)
        # Regardless of the caller's umask.
        partial.chmod(0o644)
        partial.rename(directory / path.name)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
