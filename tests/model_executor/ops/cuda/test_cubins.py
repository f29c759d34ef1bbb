"""Compiled kernels are kept on disk, and taken from there only if nobody else can have written them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.tiny_kernels import HEADER, TINY

from fastdeploy_lp.model_executor.ops.cuda.cubins import cache_directory, cubin_for, cubin_name
from fastdeploy_lp.model_executor.ops.cuda.nvrtc import Nvrtc
from fastdeploy_lp.model_executor.ops.cuda.sources import KernelSources
from fastdeploy_lp.model_executor.ops.own_files import UntrustedFileError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDEPLOY_LP_CACHE", str(tmp_path / "cache"))


def kept() -> list[Path]:
    return sorted(cache_directory().iterdir())


def test_kernels_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    umask = os.umask(0)
    try:
        cubin = cubin_for("sm_90", TINY)
    finally:
        os.umask(umask)
    (path,) = kept()
    assert path.name == cubin_name("sm_90", TINY, Nvrtc().version)
    assert path.read_bytes() == cubin
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(Nvrtc, "compile", lambda *_: pytest.fail("compiled again"))
    assert cubin_for("sm_90", TINY) == cubin


def test_another_device_other_sources_and_another_compiler_have_other_files() -> None:
    other = KernelSources(TINY.main, {"tiny.cuh": HEADER.replace("at[", "at[0 + ")})
    renamed = KernelSources(TINY.main, {"other.cuh": HEADER})
    names = {
        cubin_name("sm_90", TINY, "12.9"),
        cubin_name("sm_80", TINY, "12.9"),
        cubin_name("sm_90", other, "12.9"),
        cubin_name("sm_90", renamed, "12.9"),
        cubin_name("sm_90", TINY, "12.8"),
    }
    assert len(names) == 5


@pytest.mark.parametrize("below", [True, False])
def test_a_file_that_others_may_write_is_not_taken(below: bool) -> None:
    cubin_for("sm_90", TINY)
    (path,) = kept()
    (path if below else path.parent).chmod(0o777)
    with pytest.raises(UntrustedFileError, match="other users may write"):
        cubin_for("sm_90", TINY)
