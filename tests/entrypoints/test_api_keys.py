"""Which key of the environment a client sends, and that no error of its options shows one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastdeploy_lp.entrypoints.api_keys import key_of_environment, keys_of_environment
from fastdeploy_lp.entrypoints.cli import chat, replay


@pytest.mark.parametrize(
    ("value", "keys"),
    [(None, []), ("", []), (" ,", []), ("one", ["one"]), (" one , two", ["one", "two"]), (",two,", ["two"])],
)
def test_a_client_sends_one_of_the_keys_that_a_server_takes(
    monkeypatch: pytest.MonkeyPatch, value: str | None, keys: list[str]
) -> None:
    monkeypatch.delenv("FASTDEPLOY_LP_API_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("FASTDEPLOY_LP_API_KEY", value)
    assert [key.strip() for key in keys_of_environment()] == keys
    assert key_of_environment() == (keys[0] if keys else None)


@pytest.mark.parametrize("command", [chat, replay])
def test_no_error_of_a_client_shows_its_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: object
) -> None:
    (tmp_path / "options.yaml").write_text("api-key: [sk-secret]\n")
    with pytest.raises(SystemExit):
        command.main(["--config", str(tmp_path / "options.yaml")])  # type: ignore[attr-defined]
    told = capsys.readouterr().err
    assert "api-key: its value has the wrong type" in told
    assert "sk-secret" not in told
