"""Processes of the following ranks: start, commands, supervision and shutdown."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from io import FileIO

import msgspec

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.tensor_parallel import RANK_LOST
from fastdeploy_lp.model_executor.parallel.communicator import RankPlace
from fastdeploy_lp.platforms import shared_memory
from fastdeploy_lp.worker.pipe import read_frame, write_frame
from fastdeploy_lp.worker.tensor_parallel.commands import Command, RankLoaded, RankStart

logger = logging.getLogger(__name__)

MODULE = "fastdeploy_lp.worker.tensor_parallel"
# A broken connection is noticed before the end of the other process.
SECONDS_TO_LEARN_WHY = 2.0
# Time for a main thread that is not stuck in a collective call to report the loss itself.
SECONDS_TO_REPORT = 3.0
SECONDS_TO_END = 5.0


class RankLostError(RuntimeError):
    """A rank has ended, which ends the group."""


class Ranks:
    """All ranks except the first, which is this process.

    Each reads commands from its stdin and ends when that is closed, which the kernel does however this process ends.
    When a rank ends, this process exits with `RANK_LOST`, unless its main thread ends it before.
    """

    def __init__(self, fd_config: FDConfig, communicator_class: str) -> None:
        size = fd_config.parallel_config.tensor_parallel_size
        master, *endpoints = _free_endpoints(1 + size)
        self.place = RankPlace(0, endpoints, master)
        self._encoder = msgspec.msgpack.Encoder()
        self._why: str | None = None
        self._lost = threading.Event()
        self._stopped = threading.Event()
        self._reports: list[FileIO] = []
        self._processes = [self._start(fd_config, communicator_class, rank) for rank in range(1, size)]
        atexit.register(self.stop)

    def wait_until_loaded(self) -> None:
        """Waits until every rank has loaded its part of the model.

        Raises CheckpointError with the error that a rank reports, and EOFError when a rank ends before.
        """
        found = [msgspec.msgpack.decode(read_frame(pipe), type=RankLoaded) for pipe in self._reports]
        for pipe in self._reports:
            pipe.close()
        for loaded in found:
            if loaded.error is not None:
                raise CheckpointError(loaded.error)

    def tell(self, command: Command) -> None:
        """Sends a command to every rank; raises BrokenPipeError when a rank is gone."""
        frame = self._encoder.encode(command)
        for process in self._processes:
            if process.stdin is not None:
                write_frame(process.stdin, frame)

    def raise_if_lost(self, cause: Exception) -> None:
        """Raises RankLostError naming the rank if a call failed because a rank has ended."""
        if self._lost.wait(SECONDS_TO_LEARN_WHY):
            raise RankLostError(self._why) from cause

    def stop(self) -> None:
        """Ends every rank, by force if it does not exit in time; idempotent."""
        self._stopped.set()
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        for process in self._processes:
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            shared_memory.remove_of(process.pid)

    def _start(self, fd_config: FDConfig, communicator_class: str, rank: int) -> subprocess.Popen[bytes]:
        reading, writing = os.pipe()
        self._reports.append(FileIO(reading))
        process = subprocess.Popen([sys.executable, "-m", MODULE], stdin=subprocess.PIPE, pass_fds=[writing])
        # The rank then has the only open end, so that its death ends a wait for its report.
        os.close(writing)
        place = RankPlace(rank, self.place.endpoints, self.place.master)
        start = RankStart(fd_config, place, communicator_class, reports=writing)
        if process.stdin is not None:
            # The watcher reports a rank that ended at once.
            with contextlib.suppress(BrokenPipeError):
                write_frame(process.stdin, self._encoder.encode(start))
        threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()
        return process

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        shared_memory.remove_of(process.pid)
        if self._stopped.is_set() or self._lost.is_set():
            return
        self._why = f"rank {rank} of the tensor-parallel group {_how_it_ended(status)}"
        self._lost.set()
        logger.error("%s", self._why)
        if not self._stopped.wait(SECONDS_TO_REPORT):
            shared_memory.remove_of(os.getpid())
            os._exit(RANK_LOST)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"was ended by {next((each.name for each in signal.Signals if each.value == -status), 'a signal')}"


def _free_endpoints(count: int) -> list[str]:
    """Returns unused loopback addresses."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
