"""Distributions with entry points, written into a folder on the import path: installed, as far as Python can tell."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from fastdeploy_lp.plugins import general


def install(
    folder: Path,
    distribution: str,
    entry_points: Mapping[str, Mapping[str, str]],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    modules: Mapping[str, str] | None = None,
) -> None:
    """`entry_points`: a group, or the end of one of ours ("general_plugins"), to names and values. `modules`: names to
    code.
    """
    info = folder / f"{distribution}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
    (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires), ""]))
    sections = []
    for group, points in entry_points.items():
        section = group if "." in group else f"fastdeploy_lp.{group}"
        sections.append("\n".join([f"[{section}]", *(f"{name} = {value}" for name, value in points.items())]))
    (info / "entry_points.txt").write_text("\n".join(sections) + "\n")
    for name, code in (modules or {}).items():
        (folder / f"{name}.py").write_text(dedent(code))
    importlib.invalidate_caches()


@contextmanager
def import_folder(folder: Path, *, only: str | None = None) -> Iterator[Path]:
    """Inside, the folder is on the import path and `FASTDEPLOY_LP_PLUGINS` is `only`, or not set.

    Afterwards its modules, and what general plugins came to, are forgotten. A fixture that uses it must not ask for
    `monkeypatch`, which would put a test's variables back after this has.
    """
    if os.environ.get("FASTDEPLOY_LP_PLUGINS"):
        raise RuntimeError("an earlier test has left FASTDEPLOY_LP_PLUGINS behind")
    known = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        if only is None:
            patch.delenv("FASTDEPLOY_LP_PLUGINS", raising=False)
        else:
            patch.setenv("FASTDEPLOY_LP_PLUGINS", only)
        general.forget()
        try:
            yield folder
        finally:
            general.forget()
            for name in set(sys.modules) - known:
                if str(folder) in (getattr(sys.modules[name], "__file__", None) or ""):
                    del sys.modules[name]
