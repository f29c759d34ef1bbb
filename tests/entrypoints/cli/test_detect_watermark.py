"""What `fastdeploy-lp detect-watermark` refuses; what it finds is shown where there is a model to write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastdeploy_lp.entrypoints.cli.detect_watermark import main

MODEL = ["--model", "smollm2-135m"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--key", "-1"], "key: -1"),
        (["--key", "1", "--gamma", "1"], "gamma: 1"),
        (["--key", "1", "--context-width", "0"], "context_width: 0"),
        ([], "--key is needed"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*MODEL, *options])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_text_that_cannot_be_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-i", str(tmp_path / "none"), *MODEL, "--key", "1"]) == 2
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfa")
    assert main(["-i", str(tmp_path / "binary"), *MODEL, "--key", "1"]) == 2
    assert "decode" in capsys.readouterr().err


def test_no_text_holds_no_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").write_text("")
    assert main(["-i", str(tmp_path / "empty"), *MODEL, "--key", "1"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["green tokens 0 of 0, expected 0.0", "not watermarked"]
