"""Whose files are trusted with machine code: this user's and root's, with every directory on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastdeploy_lp.model_executor.ops.own_files import UntrustedFileError, make_own, require_own

PLACES = [".", "..", "../.."]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "ops" / "library.so"
    make_own(path.parent)
    path.write_bytes(b"")
    path.chmod(0o755)
    return path


def test_a_file_of_ones_own_is_taken(library: Path) -> None:
    assert require_own(library) == library
    assert [each.stat().st_mode & 0o777 for each in library.parents[:2]] == [0o700, 0o700]


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
@pytest.mark.parametrize("place", PLACES)
def test_what_others_may_write_to_is_refused(library: Path, place: str, mode: int) -> None:
    writable = (library / place).resolve()
    writable.chmod(mode)
    with pytest.raises(UntrustedFileError, match=rf"other users may write to {writable} \(mode {mode:o}\)"):
        require_own(library)


@needs_root
@pytest.mark.parametrize("place", PLACES)
def test_what_belongs_to_another_user_is_refused(library: Path, place: str) -> None:
    theirs = (library / place).resolve()
    os.chown(theirs, 65534, -1)
    with pytest.raises(UntrustedFileError, match=f"{theirs} belongs to the user with the id 65534"):
        require_own(library)


def test_a_directory_like_tmp_on_the_way_is_fine_and_as_the_last_one_is_not(library: Path) -> None:
    library.parent.parent.chmod(0o1777)
    assert require_own(library) == library
    with pytest.raises(UntrustedFileError, match="mode 1777"):
        make_own(library.parent.parent)


def test_a_link_is_judged_by_where_it_leads(library: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(library)
    assert require_own(link) == library
    library.chmod(0o777)
    with pytest.raises(UntrustedFileError):
        require_own(link)
