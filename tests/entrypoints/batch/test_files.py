"""Output files of batches: whole lines, taken up where an earlier run was broken off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.entrypoints.batch.files import OutputFile


def line(custom_id: str | None, message: str | None = None) -> dict[str, Any]:
    error = None if message is None else {"code": "invalid_request", "message": message}
    return {"id": "batch_req_1", "custom_id": custom_id, "response": {"body": "é🙂\n"}, "error": error}


def written(path: Path) -> list[Any]:
    content = path.read_bytes()
    assert content == b"" or content.endswith(b"\n")
    return [json.loads(each) for each in content.splitlines()]


LINES = [line("a"), line(None, "line 2: no valid JSON"), line("b"), line("ü")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole output file's content."""
    path = tmp_path_factory.mktemp("whole") / "out.jsonl"
    with OutputFile(path) as output:
        for each in LINES:
            output.write(each)
    assert written(path) == LINES
    return path.read_bytes()


@given(st.data())
def test_a_file_that_ends_anywhere_is_taken_up(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    """However many bytes got written: lines that are whole count, the rest is written again, and nothing twice."""
    length = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.mktemp("torn") / "out.jsonl"
    path.write_bytes(whole[:length])
    with OutputFile(path) as output:
        for each in LINES:
            message = each["error"]["message"] if each["error"] else ""
            if not output.has(each["custom_id"], message):
                output.write(each)
            assert output.has(each["custom_id"], message)
        assert not output.has("c")
        assert not output.has(None, "line 3: no valid JSON")
    assert written(path) == LINES


@pytest.mark.parametrize(
    "content",
    [b"# notes\n", b"a file of somebody's", b'{"id": "other"}\n', b'{"id": "batch_req_1", "cus\n', b"5\n", b"\n"],
)
def test_a_file_that_holds_anything_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"output_file: .* line 1 is no batch output"):
        OutputFile(path)
    assert path.read_bytes() == content


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with OutputFile(path), pytest.raises(ValueError, match="another run"):
        OutputFile(path)
    with OutputFile(path) as output:
        output.write(LINES[0])


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        OutputFile(tmp_path / "nowhere" / "out.jsonl")
