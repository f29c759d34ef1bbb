"""Packages with entry points, as pip would leave them on `sys.path`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_distribution(
    folder: Path,
    name: str,
    points: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str] | None = None,
    requires: str = "fastdeploy-lp>=0.1",
) -> Path:
    """Put a distribution with these entry points (by group, then by name) and modules (by name) into `folder`."""
    for module, source in (modules or {}).items():
        (folder / f"{module}.py").write_text(source)
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: {requires}\n")
    sections = [
        "\n".join([f"[{group}]", *(f"{point} = {value}" for point, value in named.items())])
        for group, named in points.items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(sections) + "\n")
    return folder
