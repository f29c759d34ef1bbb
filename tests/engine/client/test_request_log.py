"""The file of a request log: whole records, for its owner only, of bounded size, and nobody waits for it."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.noise import FIXED, json_values
from support.tiny import tiny_fd_config

from fastdeploy_lp.engine.client import request_log
from fastdeploy_lp.engine.client.logged_request import LoggedEngine, LoggedOutput, LoggedRequest, read_line
from fastdeploy_lp.engine.client.request_log import RequestLog
from fastdeploy_lp.engine.errors import RequestFailedError
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.sampling_params import SamplingParams

ENGINE = LoggedEngine("1.0", "m", "abc", {"max_model_len": 64, "quantization": None})
MEGABYTE = 1 << 20


class Ended:
    """What a log reads of a generation that has ended."""

    def __init__(self, serial: int, tokens: int = 3, error: RequestFailedError | None = None) -> None:
        self.serial = serial
        self.request_id = f"r{serial}"
        self.arrival_time = 1.5
        self.error = error
        self.prompt = self
        self.token_ids = list(range(tokens))
        self.index, self.finish_reason, self.stop_reason = 0, "length", None
        self.completions = [self]


def logged(log: RequestLog, *generations: Ended) -> None:
    for each in generations:
        log.began(each, SamplingParams(seed=1, max_tokens=3))  # type: ignore[arg-type]
        log.ended(each)  # type: ignore[arg-type]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def ids(path: Path) -> list[str]:
    return [line["request_id"] for line in lines(path) if line["kind"] == "request"]


def test_a_record_holds_the_request_and_its_outputs(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = RequestLog(path, ENGINE, MEGABYTE)
    logged(log, Ended(1), Ended(2, error=RequestFailedError("a reason")))
    log.close()
    engine, first, second = (read_line(line) for line in path.read_bytes().splitlines())
    assert engine == ENGINE
    params = SamplingParams(seed=1, max_tokens=3)
    outputs = [LoggedOutput(0, [0, 1, 2], "length")]
    assert first == LoggedRequest(1.5, "r1", ENGINE.id, [0, 1, 2], params, outputs)
    assert isinstance(second, LoggedRequest)
    assert second.error == "a reason"
    assert (log.recorded, log.dropped) == (2, 0)


def test_the_file_is_its_owners_also_if_it_was_there(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("")
    path.chmod(0o644)
    RequestLog(path, ENGINE, MEGABYTE).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    fresh = tmp_path / "fresh.jsonl"
    before = os.umask(0)
    try:
        RequestLog(fresh, ENGINE, MEGABYTE).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o600


def test_a_second_start_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"kind": "requ')
    log = RequestLog(path, ENGINE, MEGABYTE)
    logged(log, Ended(1))
    log.close()
    torn, *rest = path.read_bytes().splitlines()
    assert torn == b'{"kind": "requ'
    assert [json.loads(line)["kind"] for line in rest] == ["engine", "request"]


def test_the_size_is_bounded_and_no_record_is_cut(tmp_path: Path) -> None:
    path, bound = tmp_path / "log.jsonl", 4000
    log = RequestLog(path, ENGINE, bound)
    logged(log, *(Ended(number, tokens=20) for number in range(100)))
    log.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log.jsonl", "log.jsonl.1"]
    for each in tmp_path.iterdir():
        assert each.stat().st_size <= bound
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
        assert lines(each)[0]["kind"] == "engine"
    assert (ids(tmp_path / "log.jsonl.1") + ids(path))[-1] == "r99"
    assert (log.recorded, log.dropped) == (100, 0)


def test_each_request_is_recorded_once(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "log.jsonl", ENGINE, MEGABYTE)
    generation = Ended(1)
    logged(log, generation)
    log.ended(generation)  # type: ignore[arg-type]
    log.close()
    assert ids(tmp_path / "log.jsonl") == ["r1"]


def test_nobody_waits_for_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request_log, "MAX_QUEUED", 10)
    path = tmp_path / "log.jsonl"
    log = RequestLog(path, ENGINE, MEGABYTE)
    written, free = log._write, threading.Event()

    def slow(content: bytes) -> None:
        free.wait(30)
        written(content)

    monkeypatch.setattr(log, "_write", slow)
    logged(log, *(Ended(number) for number in range(100)))
    assert log.dropped >= 80
    free.set()
    log.close()
    assert log.recorded + log.dropped == 100
    assert len(ids(path)) == log.recorded
    assert 1 <= len(caplog.records) <= 7


def test_a_full_disk_costs_records_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RequestLog(tmp_path / "log.jsonl", ENGINE, MEGABYTE)

    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "_write", full)
    logged(log, Ended(1), Ended(2))
    log.close()
    assert (log.recorded, log.dropped) == (0, 2)


def test_a_record_that_the_disk_took_half_of_does_not_damage_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.jsonl"
    log = RequestLog(path, ENGINE, MEGABYTE)
    write, results = os.write, iter([20, OSError(28, "No space left on device")])

    def nearly_full(file: int, content: bytes) -> int:
        result = next(results, None)
        if isinstance(result, OSError):
            raise result
        return write(file, content[:result])

    monkeypatch.setattr(os, "write", nearly_full)
    logged(log, Ended(1), Ended(2))
    log.close()
    _, torn, whole = path.read_bytes().splitlines()
    assert len(torn) == 20
    assert json.loads(whole)["request_id"] == "r2"
    assert (log.recorded, log.dropped) == (1, 1)
    assert log._size == path.stat().st_size


def test_a_file_that_could_not_be_begun_is_begun_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    log = RequestLog(path, ENGINE, 1000)
    opened, failures = os.open, iter([OSError(24, "Too many open files")])

    def no_file_left(*arguments: Any) -> int:
        for failure in failures:
            raise failure
        return opened(*arguments)

    monkeypatch.setattr(os, "open", no_file_left)
    logged(log, *(Ended(number, tokens=20) for number in range(6)))
    log.close()
    assert (log.recorded, log.dropped) == (5, 1)
    assert ids(path)[-1] == "r5"


def test_a_file_that_somebody_moved_away_is_begun_anew_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = RequestLog(path, ENGINE, 1000)
    path.rename(tmp_path / "elsewhere")
    logged(log, *(Ended(number, tokens=20) for number in range(6)))
    log.close()
    assert (log.recorded, log.dropped) == (6, 0)
    assert ids(path)[-1] == "r5"


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda path: path.mkdir(), "cannot write"),
        (lambda path: os.mkfifo(path), "cannot write|.* is no plain file"),
        (lambda path: path.symlink_to("/dev/null"), "cannot write"),
        (lambda path: path.symlink_to(path.with_name("elsewhere")), "cannot write"),
    ],
)
def test_what_is_no_plain_file_is_refused(tmp_path: Path, prepare: Callable[[Path], None], reason: str) -> None:
    path = tmp_path / "log.jsonl"
    prepare(path)
    with pytest.raises(ValueError, match=f"request_log: ({reason})"):
        RequestLog(path, ENGINE, MEGABYTE)
    assert not (tmp_path / "elsewhere").exists()


def test_two_servers_do_not_share_a_file(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "log.jsonl", ENGINE, MEGABYTE)
    with pytest.raises(ValueError, match="another server writes"):
        RequestLog(tmp_path / "log.jsonl", ENGINE, MEGABYTE)
    log.close()


@given(
    record=st.builds(
        LoggedRequest,
        time=st.floats(allow_nan=False),
        request_id=st.text(max_size=5),
        engine=st.text(max_size=5),
        prompt_token_ids=st.lists(st.integers(0, 2**40), max_size=4),
        params=st.builds(
            SamplingParams,
            seed=st.integers(0, 2**64 - 1),
            max_tokens=st.integers(1, 2**40),
            stop=st.none() | st.lists(st.text(min_size=1, max_size=3), max_size=2),
            logits_processors_args=st.none() | st.dictionaries(st.text(max_size=5), json_values, max_size=2),
            guided_decoding=st.none() | st.builds(GuidedDecodingParams, regex=st.text(min_size=1, max_size=3)),
        ),
        outputs=st.lists(
            st.builds(
                LoggedOutput,
                st.integers(0, 5),
                st.lists(st.integers(0, 9), max_size=3),
                st.sampled_from(["stop", "length", "abort"]),
                st.none() | st.integers(0, 9) | st.text(max_size=3),
            ),
            max_size=2,
        ),
        error=st.none() | st.text(max_size=5),
    )
)
@FIXED
def test_a_line_gives_back_what_was_recorded(record: LoggedRequest) -> None:
    line = record.line()
    assert line.count(b"\n") == 1
    assert repr(read_line(line)) == repr(record)


def test_infinity_is_recorded_as_such(tmp_path: Path) -> None:
    params = SamplingParams(seed=1, max_tokens=1, logits_processors_args={"logit_bias": {"5": -math.inf}})
    back = read_line(LoggedRequest(0.0, "r", "e", [1], params, []).line())
    assert isinstance(back, LoggedRequest)
    assert back.params.logits_processors_args == {"logit_bias": {"5": -math.inf}}


def test_engines_that_would_give_other_tokens_differ() -> None:
    config = tiny_fd_config()
    same, other = LoggedEngine.of(config), LoggedEngine.of(tiny_fd_config("tiny-llama", max_model_len=32))
    assert LoggedEngine.of(config) == same
    assert same.id != other.id
    assert same.differences(other) == ["max_model_len: 64, now 32"]
    assert same.differences(same) == []
