"""What the runner of batches does with many lines, on a small application of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from tqdm import tqdm

from fastdeploy_lp.engine.errors import EngineDeadError
from fastdeploy_lp.entrypoints.batch.files import OutputFile
from fastdeploy_lp.entrypoints.batch.runner import BatchRunner, Tally
from fastdeploy_lp.entrypoints.openai import errors

CHAT = "/v1/chat/completions"


class StandIn:
    """Answers with what it was asked; holds requests back until so many are there."""

    def __init__(self, wave: int = 1) -> None:
        self.app = FastAPI()
        errors.install(self.app)
        self.app.add_api_route(CHAT, self.answer, methods=["POST"], response_model=None)
        self.bodies: list[Any] = []
        self.in_flight = self.peak = 0
        self._wave = wave
        self._gate = asyncio.Event()

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            if len(self.bodies) % self._wave == 0:
                gate, self._gate = self._gate, asyncio.Event()
                gate.set()
            else:
                await self._gate.wait()
            if "refuse" in body:
                info = {"message": "refused", "code": body.get("code")}
                return JSONResponse({"error": info}, body["refuse"])
            if "fault" in body:
                raise ValueError("a fault of the application")
            return JSONResponse({"id": "answer-1", "echo": body})
        finally:
            self.in_flight -= 1


def request(custom_id: str, **body: Any) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}).encode() + b"\n"


def run(stand_in: StandIn, path: Path, lines: Sequence[bytes], concurrency: int = 2) -> tuple[Tally, list[Any]]:
    with OutputFile(path) as output, tqdm(disable=True) as progress:
        runner = BatchRunner(stand_in.app, output, progress)
        asyncio.run(asyncio.wait_for(runner.run(lines, concurrency), 60))
    return runner.tally, [json.loads(line) for line in path.read_bytes().splitlines()]


def test_every_line_has_its_answer(tmp_path: Path) -> None:
    lines = [
        b"\xef\xbb\xbf" + request("a", text="é"),
        b"\n",
        b"nonsense\n",
        request("b", refuse=400),
        request("a", again=True),
        b" \r\n",
        request("c", stream=True),
        request("d")[:-1],
    ]
    tally, written = run(StandIn(), tmp_path / "out.jsonl", lines)
    assert tally == Tally(completed=2, failed=4)
    by_id = {line["custom_id"]: line for line in written if line["custom_id"] is not None}
    assert by_id["a"]["response"] == {
        "status_code": 200,
        "request_id": "answer-1",
        "body": {"id": "answer-1", "echo": {"text": "é"}},
    }
    assert by_id["a"]["error"] is None
    assert (by_id["b"]["response"]["status_code"], by_id["b"]["error"]) == (400, None)
    assert by_id["b"]["response"]["body"] == {"error": {"message": "refused", "code": None}}
    assert by_id["c"]["response"] is None
    assert by_id["c"]["error"]["message"] == "line 7: body.stream: a batch has no streams; leave it out"
    assert by_id["d"]["response"]["status_code"] == 200
    nameless = [line["error"]["message"] for line in written if line["custom_id"] is None]
    assert nameless[0].startswith("line 3: no valid JSON")
    assert nameless[1] == "line 5: custom_id: 'a' has come before"
    assert len({line["id"] for line in written}) == len(written) == 6


@pytest.mark.parametrize("concurrency", [1, 3])
def test_exactly_so_many_are_in_flight(tmp_path: Path, concurrency: int) -> None:
    """The application answers full waves only, which fewer in flight would never make."""
    stand_in = StandIn(wave=concurrency)
    tally, _ = run(stand_in, tmp_path / "out.jsonl", [request(str(i)) for i in range(4 * concurrency)], concurrency)
    assert (tally.completed, stand_in.peak) == (4 * concurrency, concurrency)


def test_a_second_run_answers_what_the_first_did_not(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    lines = [request("a"), b"nonsense\n", request("b", refuse=400), request("c"), request("a")]
    run(StandIn(), path, lines[:3])
    content = path.read_bytes()
    path.write_bytes(content + b'{"id": "batch_req_torn')
    stand_in = StandIn()
    tally, written = run(stand_in, path, lines)
    assert tally == Tally(completed=1, failed=1, skipped=3)
    assert len(stand_in.bodies) == 1
    assert path.read_bytes().startswith(content)
    assert len(written) == 5
    assert run(StandIn(), path, lines) == (Tally(skipped=5), written)


def test_a_fault_of_the_application_is_one_requests_own(tmp_path: Path) -> None:
    tally, written = run(StandIn(), tmp_path / "out.jsonl", [request("a", fault=True), request("b")])
    assert tally == Tally(completed=1, failed=1)
    assert sorted(line["response"]["status_code"] for line in written) == [200, 500]


def test_without_an_engine_the_run_ends_and_can_be_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    lines = [request("a"), request("b", refuse=503, code="engine_down"), request("c")]
    with pytest.raises(EngineDeadError, match="refused"):
        run(StandIn(), path, lines, 1)
    assert [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()] == ["a"]
    # One processor that is out of service is no reason to end.
    tally, _ = run(StandIn(), path, [lines[0], request("b", refuse=503, code="logits_processor_quarantined"), lines[2]])
    assert tally == Tally(completed=1, failed=1, skipped=1)
