"""What another user of this machine can do with the worker's sockets: nothing. Root can; the tests drop to `nobody`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from support.processes import children_of
from support.server import free_port, server_environment, wait_until
from support.tiny import tiny_fd_config

from fastdeploy_lp.config import KEY_VARIABLES, FDConfig, ParallelConfig
from fastdeploy_lp.engine.client import supervisor
from fastdeploy_lp.engine.client.supervisor import WorkerHandle
from fastdeploy_lp.engine.client.worker_socket import HandshakeWatch
from fastdeploy_lp.messages import AddRequest, StepOutputs, WorkerReady, encode
from fastdeploy_lp.request.sampling_params import SamplingParams

NOBODY = 65534
PROCESS_FILES = ["environ", "maps"]
SECONDS = 60.0
KEY = "secret-key-of-a-client"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="only root can become another user; test_a_stranger_is_refused_and_logged tries the same as the same user",
)
# Imports first: another user may not be able to read where they come from.
STRANGER = """
    import os, socket, sys, zmq
    endpoint, pid, message, user = sys.argv[1:5]
    os.setgroups([]); os.setgid(int(user)); os.setuid(int(user))
    found = []

    def attempt(name, action):
        try:
            action()
        except (OSError, zmq.ZMQError):
            return
        found.append(name)

    folder = endpoint.partition("://")[2].rpartition("/")[0]
    if endpoint.startswith("ipc"):
        attempt("list the folder", lambda: os.listdir(folder))
        attempt("connect", lambda: socket.socket(socket.AF_UNIX).connect(endpoint.partition("://")[2]))
    for name in ("environ", "maps"):
        attempt(name, lambda: open(f"/proc/{pid}/{name}", "rb").read(1))

    context = zmq.Context()
    for key in (None, zmq.curve_keypair()[0]):
        talker = context.socket(zmq.PAIR)
        talker.linger = 0
        if key is not None:
            talker.curve_publickey, talker.curve_secretkey = zmq.curve_keypair()
            talker.curve_serverkey = key
        talker.connect(endpoint)
        # A PAIR socket may always send into its own queue; what counts is whether anything arrives or comes back.
        talker.send(bytes.fromhex(message), zmq.NOBLOCK)
        if talker.poll(700):
            found.append(f"read {talker.recv()!r}")
        talker.close()
    print("\\n".join(found))
"""


@pytest.fixture(scope="module")
def loop(loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.AbstractEventLoop]:
    """The loop of the workers below, of which nothing is left."""
    yield loop
    wait_until(lambda: not children_of(program="fastdeploy_lp.worker"), 10.0)


def worker(loop: asyncio.AbstractEventLoop, transport: str) -> Iterator[WorkerHandle]:
    """A worker that starts in an environment with clients' keys."""
    handle = WorkerHandle(config(transport))
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("TMPDIR", "/tmp")
            for variable in KEY_VARIABLES:
                environment.setenv(variable, KEY)
            assert isinstance(loop.run_until_complete(handle.start({})), WorkerReady)
        yield handle
    finally:
        loop.run_until_complete(handle.stop())


@pytest.fixture(scope="module")
def over_unix(loop: asyncio.AbstractEventLoop) -> Iterator[WorkerHandle]:
    yield from worker(loop, "unix")


@pytest.fixture(scope="module")
def over_tcp(loop: asyncio.AbstractEventLoop) -> Iterator[WorkerHandle]:
    yield from worker(loop, "tcp")


async def what_succeeds(handle: WorkerHandle, user: int) -> list[str]:
    program = [sys.executable, "-c", textwrap.dedent(STRANGER)]
    stranger = await asyncio.create_subprocess_exec(
        *program,
        endpoint_of(handle),
        str(handle.pid),
        injected().hex(),
        str(user),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=server_environment(),
    )
    output, errors = await asyncio.wait_for(stranger.communicate(), SECONDS)
    assert stranger.returncode == 0, errors.decode()
    return output.decode().split("\n")[:-1] if output.strip() else []


def config(transport: str) -> FDConfig:
    port = free_port() if transport == "tcp" else None
    return replace(tiny_fd_config(), parallel_config=ParallelConfig(engine_worker_queue_port=port))


def endpoint_of(handle: WorkerHandle) -> str:
    return handle._socket.last_endpoint.decode().rstrip("\0")


def injected() -> bytes:
    return encode(AddRequest("injected", [1, 2, 3], SamplingParams(max_tokens=1, seed=1, temperature=0)))


async def answer_to_a_request_of_ours(handle: WorkerHandle) -> list[str]:
    """The ids of the sequences that the worker tells of until ours has ended."""
    handle.send(AddRequest("ours", [1, 2, 3], SamplingParams(max_tokens=2, seed=1, temperature=0)))
    told: list[str] = []
    while True:
        message = await asyncio.wait_for(handle.receive(), SECONDS)
        assert isinstance(message, StepOutputs)
        told += [step.request_id for step in message.steps]
        if any(step.request_id == "ours" and step.finish_reason for step in message.steps):
            return told


@needs_root
@pytest.mark.parametrize("worker", ["over_unix", "over_tcp"])
def test_another_user_can_neither_read_nor_inject(
    worker: str, loop: asyncio.AbstractEventLoop, request: pytest.FixtureRequest
) -> None:
    handle: WorkerHandle = request.getfixturevalue(worker)

    async def main() -> None:
        attempts = asyncio.create_task(what_succeeds(handle, NOBODY))
        told = await answer_to_a_request_of_ours(handle)
        assert await attempts == []
        assert set(told + await answer_to_a_request_of_ours(handle)) == {"ours"}
        # Made by somebody who may, the same attempts tell the difference; nor does root pass the handshake.
        # Nobody finds a unix socket any more: its name is gone since the worker has connected.
        assert await what_succeeds(handle, 0) == PROCESS_FILES
        assert set(await answer_to_a_request_of_ours(handle)) == {"ours"}

    loop.run_until_complete(main())


def test_the_sockets_folder_is_our_own() -> None:
    async def main() -> None:
        handle = WorkerHandle(config("unix"))
        handle._bind()
        folder = Path(endpoint_of(handle).removeprefix("ipc://")).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        await handle.stop()
        assert not folder.exists()

    asyncio.run(main())


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("knows", ["nothing", "another key"])
def test_a_stranger_is_refused_and_logged(
    transport: str, knows: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}" if transport == "tcp" else f"ipc://{tmp_path}/s"

    async def main() -> None:
        with zmq.Context() as context, context.socket(zmq.PAIR) as ours, context.socket(zmq.PAIR) as theirs:
            ours.curve_publickey, ours.curve_secretkey = zmq.curve_keypair()
            ours.curve_server = True
            watch = HandshakeWatch(ours)
            watch.start()
            ours.bind(endpoint)
            theirs.linger = 0
            if knows == "another key":
                theirs.curve_publickey, theirs.curve_secretkey = zmq.curve_keypair()
                theirs.curve_serverkey = zmq.curve_keypair()[0]
            theirs.connect(endpoint)
            theirs.send(injected(), zmq.NOBLOCK)
            while not watch.refused:
                await asyncio.sleep(0.01)
            assert not ours.poll(100)
            watch.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(main(), SECONDS))
    assert "a connection to the worker's socket was refused" in caplog.text


def open_sockets() -> set[str]:
    targets = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            targets.add(os.readlink(f"/proc/self/fd/{number}"))
    return {target for target in targets if target.startswith("socket:")}


def test_the_port_is_closed_once_the_worker_is_connected(
    over_tcp: WorkerHandle, loop: asyncio.AbstractEventLoop
) -> None:
    """Another user's connections, which need no key to be idle, would use up the files of this process."""
    port = int(endpoint_of(over_tcp).rpartition(":")[2])
    before = open_sockets()
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=0.3)
    assert not open_sockets() - before
    assert set(loop.run_until_complete(answer_to_a_request_of_ours(over_tcp))) == {"ours"}


def test_who_says_nothing_before_the_worker_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "HANDSHAKE_MILLISECONDS", 100)
    fd_config = config("tcp")
    port = fd_config.parallel_config.engine_worker_queue_port

    async def main() -> None:
        handle = WorkerHandle(fd_config)
        handle._bind()
        with ExitStack() as stack:
            idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS)) for _ in range(50)]
            for connection in idle:
                # ZeroMQ's greeting, then the end.
                while await asyncio.to_thread(connection.recv, 100):
                    pass
        await handle.stop()

    asyncio.run(asyncio.wait_for(main(), SECONDS))


def test_knocking_for_ever_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        watch = HandshakeWatch(socket)
        for _ in range(1000):
            watch._count("ipc:///x")
    assert watch.refused == 1000
    assert len(caplog.records) == 10


def test_the_worker_does_not_get_the_keys_of_clients(over_unix: WorkerHandle) -> None:
    parts = [Path(f"/proc/{over_unix.pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
    assert parts[0].count(b"PYTHONPATH=") == 1
    assert KEY.encode() not in b"".join(parts)
