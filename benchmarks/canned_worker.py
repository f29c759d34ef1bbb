"""A worker that computes nothing: at a fixed rate, each of its requests gets one token.

`http_overhead.py` uses it in place of the engine. The tokens are digits that count steps, so that a client knows from a
token when the worker sent it; the times of all steps are written to the file that `CANNED_STEPS` names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import zmq
from tokenizers import Tokenizer

from fastdeploy_lp.messages import (
    AbortRequests,
    AddRequest,
    SequenceStep,
    Shutdown,
    StepOutputs,
    ToWorker,
    WorkerReady,
    WorkerStart,
    decoder,
    encode,
)
from fastdeploy_lp.stats import SchedulerStats


def main() -> None:
    """Speaks the worker's side of the protocol until told to stop."""
    pipe = sys.stdin.buffer
    start: WorkerStart = decoder(WorkerStart).decode(pipe.read(int.from_bytes(pipe.read(8), "big")))
    tokenizer = Tokenizer.from_file(str(Path(start.fd_config.model_config.directory) / "tokenizer.json"))
    digits = [tokenizer.encode(str(digit), add_special_tokens=False).ids[-1] for digit in range(10)]
    step_seconds = float(os.environ["CANNED_STEP_SECONDS"])
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = start.server_key
        socket.connect(start.endpoint)
        socket.send(encode(WorkerReady(0.0)))
        sent = serve(socket, digits, step_seconds)
    Path(os.environ["CANNED_STEPS"]).write_text(json.dumps(sent))


def serve(socket: zmq.Socket[bytes], digits: list[int], step_seconds: float) -> list[float]:
    """Give every request a token a step; returns when each step was sent, in `time.perf_counter` seconds."""
    inbox, parent = decoder(ToWorker), os.getppid()
    left: dict[str, int] = {}
    sent: list[float] = []
    due = 0.0
    while os.getppid() == parent:
        wait = int(max(0.0, due - time.perf_counter()) * 1000) if left else 1000
        if socket.poll(wait):
            message = inbox.decode(socket.recv())
            if isinstance(message, AddRequest):
                left[message.request_id] = message.params.max_tokens or 1
            elif isinstance(message, AbortRequests):
                for request_id in message.request_ids:
                    left.pop(request_id, None)
                socket.send(encode(StepOutputs([], SchedulerStats(len(left)))))
            elif isinstance(message, Shutdown):
                break
            continue
        if not left:
            continue
        token = digits[len(sent) % 10]
        steps = [SequenceStep(name, [token], None if count > 1 else "length") for name, count in left.items()]
        left = {name: count - 1 for name, count in left.items() if count > 1}
        sent.append(time.perf_counter())
        socket.send(encode(StepOutputs(steps, SchedulerStats(len(left)))))
        due = sent[-1] + step_seconds
    return sent


if __name__ == "__main__":
    main()
