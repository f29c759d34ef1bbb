"""Two workers behind one server: the same answers, work on both, and one that dies is nothing to the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq
from support.chat import HELLO, chunks, opened_stream, post, text_of, wait_for_text
from support.leftovers import REGISTERS, check_nothing_left, read_to_the_end
from support.server import ServerProcess, free_port, health, server_environment, wait_until
from support.supervised import LONG, supervised_server

from fastdeploy_lp.engine.metrics import PREFIX

SLOTS = 4
SHORT: dict[str, Any] = {"messages": HELLO, "max_tokens": 8, "temperature": 1, "seed": 5, "ignore_eos": True}
CHAIN = ["support.served_faults:RaisesOnBoom", "LogitBiasLogitsProcessor", REGISTERS]


def two_ports() -> int:
    """A free port with a free one behind it."""
    while True:
        first = free_port()
        try:
            with zmq.Context() as context, context.socket(zmq.PUB) as probe:
                probe.bind(f"tcp://127.0.0.1:{first + 1}")
        except zmq.ZMQError:
            continue
        return first


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    return two_ports(), two_ports()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ports: tuple[int, int]) -> Iterator[ServerProcess]:
    options = ["--data-parallel-size", "2", "--logits-processors", *CHAIN, "--logits-processors-max-faults", "1"]
    options += ["--cache-queue-port", str(ports[0]), "--engine-worker-queue-port", str(ports[1])]
    options += ["--max-worker-restarts", "100"]
    with supervised_server(tmp_path_factory.mktemp("s"), *options, every_core=True) as running:
        yield running


def usable_cores() -> int:
    """As the platform counts them where the caller has set nothing."""
    program = "from fastdeploy_lp.platforms import CpuPlatform as P; print(P().worker_environment()['OMP_NUM_THREADS'])"
    environment = server_environment(every_core=True)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


def by_engine(server: ServerProcess, name: str) -> list[float]:
    """A metric's value for each of both workers."""
    lines = httpx.get(server.metrics_url).text.splitlines()
    found = {line.split("}")[0]: float(line.split()[-1]) for line in lines if line.startswith(f"{PREFIX}{name}{{")}
    return [sum(value for labels, value in found.items() if f'engine="{index}"' in labels) for index in (0, 1)]


def content_of(answer: httpx.Response) -> str:
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def test_there_are_two_workers_and_each_has_its_share_of_the_cores(server: ServerProcess) -> None:
    assert len(server.worker_pids) == 2
    counts = []
    for pid in server.worker_pids:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        counts += [int(each.split(b"=")[1]) for each in environment if each.startswith(b"OMP_NUM_THREADS=")]
    assert sum(counts) == max(usable_cores(), 2)


def test_answers_do_not_depend_on_the_worker(server: ServerProcess) -> None:
    before = by_engine(server, "request_success_total")
    with ThreadPoolExecutor(8) as pool:
        bodies = [{**SHORT, "messages": [{"role": "user", "content": f"the {n % 4} dog"}]} for n in range(16)]
        answers = [content_of(each) for each in pool.map(lambda b: post(server, b), bodies)]
    assert [answers[n] for n in range(16)] == [answers[n % 4] for n in range(16)]
    after = by_engine(server, "request_success_total")
    assert sum(after) - sum(before) == 16
    assert all(now > then for now, then in zip(after, before, strict=True))


def test_n_sequences_of_a_request_run_in_one_worker(server: ServerProcess) -> None:
    before = by_engine(server, "requests_number_total")
    answer = post(server, {**SHORT, "n": 3}).json()
    assert [each["index"] for each in answer["choices"]] == [0, 1, 2]
    after = by_engine(server, "requests_number_total")
    assert sorted(now - then for now, then in zip(after, before, strict=True)) == [0, 1]


def test_many_prompts_of_a_request_keep_their_order(server: ServerProcess) -> None:
    prompts = [f"the quick brown {n}" for n in range(6)]
    body = {"prompt": prompts, "max_tokens": 4, "temperature": 0, "echo": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body).json()
    texts = [each["text"] for each in sorted(answer["choices"], key=lambda each: each["index"])]
    assert [text.startswith(prompt) for text, prompt in zip(texts, prompts, strict=True)] == [True] * 6


def test_embeddings(server: ServerProcess) -> None:
    body = {"input": ["a dog", "a fox", "a dog"]}
    data = httpx.post(f"{server.url}/v1/embeddings", json=body).json()["data"]
    assert data[0]["embedding"] == data[2]["embedding"] != data[1]["embedding"]


def test_work_is_spread_evenly_and_aborted_where_it_runs(server: ServerProcess) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(opened_stream(server, LONG)) for _ in range(4)]
        for stream in streams:
            wait_for_text(stream)
        assert httpx.get(f"{server.url}/load").json() == {"server_load": 4, "running": 4, "waiting": 0}
        assert by_engine(server, "num_requests_running") == [2, 2]
        httpx.post(f"{server.url}/v1/abort_requests", json={"abort_all": True})
        for stream in streams:
            list(stream)
    wait_until(lambda: by_engine(server, "num_requests_running") == [0, 0], 30)


def test_conversations_find_their_blocks_again(server: ServerProcess) -> None:
    text = "the quick brown fox jumps over the lazy dog " * 8
    body = {**SHORT, "messages": [{"role": "user", "content": f"only here: {text}"}]}
    post(server, body)
    cached = [post(server, body).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(3)]
    assert min(cached) > 0


def test_each_worker_tells_of_its_own_cache(server: ServerProcess, ports: tuple[int, int]) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        for rank in (0, 1):
            socket.connect(f"tcp://127.0.0.1:{ports[0] + rank}")
        socket.subscribe(b"")
        ranks: set[int] = set()

        def both_have_told() -> bool:
            for _ in range(4):
                # Another beginning each time, so that it is new to the cache of whoever gets it.
                words = " ".join(str(number) for number in range(len(ranks), 60))
                post(server, {**SHORT, "messages": [{"role": "user", "content": os.urandom(4).hex() + words}]})
            while socket.poll(0):
                ranks.add(msgspec.msgpack.decode(socket.recv_multipart()[2])[2])
            return ranks == {0, 1}

        wait_until(both_have_told, 60)


def test_a_dead_worker_is_nothing_to_the_other_ones_requests(server: ServerProcess) -> None:
    """Of two streams and two plain requests, one on each worker, those of the dead one run again, the others go on."""
    lasting = {**SHORT, "max_tokens": 800}
    calm, calm_lasting = (content_of(post(server, body)) for body in (SHORT, lasting))
    before = by_engine(server, "worker_restarts_total")
    old = server.worker_pids
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        streams = [stack.enter_context(opened_stream(server, {**LONG, "max_tokens": 1000})) for _ in range(2)]
        for stream in streams:
            wait_for_text(stream)
        plain = [pool.submit(post, server, lasting) for _ in range(2)]
        wait_until(lambda: by_engine(server, "num_requests_running") == [2, 2], 30)
        os.kill(next(iter(old)), signal.SIGKILL)
        # Answered by the one that is left, long before the other one is back.
        answers = [post(server, SHORT) for _ in range(4)]
        assert health(server.url) == 200
        rests = sorted((text_of(chunks(stream)) for stream in streams), key=len)
        assert [content_of(each.result(600)) for each in plain] == [calm_lasting] * 2
    assert [content_of(each) for each in answers] == [calm] * 4
    # Both have the same text, of which each had told a beginning by then.
    assert rests[0]
    assert rests[1].endswith(rests[0])
    wait_until(lambda: len(server.worker_pids) == 2 and server.worker_pids != old, 60)
    wait_until(lambda: sum(by_engine(server, "worker_restarts_total")) > sum(before), 60)
    assert sorted(now - then for now, then in zip(by_engine(server, "worker_restarts_total"), before, strict=True)) == [
        0,
        1,
    ]


def test_a_quarantine_in_one_worker_is_told_and_reset_in_all(server: ServerProcess) -> None:
    body = {**SHORT, "logits_processors_args": {"boom": 2}}
    url = f"{server.url}/v1/logits_processors"
    # A worker that was killed in a call of the processor, by a test before this one, has it in quarantine.
    assert httpx.post(f"{url}/RaisesOnBoom/reset").json()["state"] == "ok"
    assert post(server, body).status_code == 500
    (card,) = [each for each in httpx.get(url).json()["data"] if each["name"] == "RaisesOnBoom"]
    assert card["state"] == "quarantined"
    # The other worker has it in service still.
    assert post(server, body).status_code == 500
    assert post(server, body).status_code == 503
    assert httpx.post(f"{url}/RaisesOnBoom/reset").json()["state"] == "ok"
    assert post(server, body).status_code == 500


def test_a_stream_is_the_same_text_as_a_plain_answer(server: ServerProcess) -> None:
    with opened_stream(server, SHORT) as payloads:
        streamed = text_of(chunks(payloads))
    assert streamed == content_of(post(server, SHORT))


def test_killed_api_process_takes_its_workers_along(server: ServerProcess) -> None:
    """Last: it ends the server. One of the workers is not the first of its place."""
    workers = server.worker_pids
    assert all(f"process {pid} is registered" in server.log for pid in (server.pid, *workers))
    with opened_stream(server, LONG) as payloads:
        wait_for_text(payloads)
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        read_to_the_end(payloads)
    check_nothing_left(server, *workers)
