"""The worker process's main loop: messages in, steps, messages out."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import Any

import cloudpickle
import zmq

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.log_format import configure_from_environment
from fastdeploy_lp.logits_processor import LogitsProcessorChain, fastdeploy_compat, load_processors, vllm_compat
from fastdeploy_lp.logits_processor.chain.calls import RunningCalls
from fastdeploy_lp.logits_processor.errors import DeviceLostError
from fastdeploy_lp.messages import (
    AbortRequests,
    AddRequest,
    FromWorker,
    ResetProcessor,
    Shutdown,
    ToWorker,
    WorkerFailed,
    WorkerReady,
    WorkerStart,
    decoder,
    encode,
)
from fastdeploy_lp.platforms import shared_memory
from fastdeploy_lp.plugins import load_general_plugins
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.kv_events import CachePortError, KVEventPublisher
from fastdeploy_lp.worker.pipe import read_frame

logger = logging.getLogger(__name__)

ORPHANED = 3


def main() -> None:
    """Reads WorkerStart from stdin and serves until Shutdown; never outlives the API process."""
    # Paddle has added its own root-logger handler by now, on a stream without a reader.
    configure_from_environment("worker")
    # Ctrl-C in a terminal reaches the whole process group; only the API process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Unbuffered: a daemon thread that waits inside a buffered reader aborts the interpreter's exit.
    pipe = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115 - open for the process's life
    start: WorkerStart = decoder(WorkerStart).decode(read_frame(pipe))
    threading.Thread(target=_exit_with_parent, args=(pipe, start.endpoint, os.getppid()), daemon=True).start()
    WorkerProcess(start).serve()


class WorkerProcess:
    """Connects to the API process, loads the model and steps the engine."""

    def __init__(self, start: WorkerStart) -> None:
        self._start = start
        self._inbox = decoder(ToWorker)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
        self._socket.curve_serverkey = start.server_key
        self._socket.connect(start.endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._cache_events: KVEventPublisher | None = None

    def serve(self) -> None:
        """Serves until Shutdown arrives; reports an engine error before the process exits with status 1."""
        try:
            self._open_cache_events()
            engine = self._start_engine()
            self._poller.register(engine.preparing.wake_up.fileno(), zmq.POLLIN)
            while self._receive(engine):
                if engine.can_step:
                    self._send(engine.step())
                    self._publish_cache_events(engine)
        except (CachePortError, CheckpointError) as error:  # the operator's mistake, for which one line is enough
            self._send(WorkerFailed(str(error)))
            raise SystemExit(1) from error
        except (Exception, DeviceLostError) as error:
            logger.exception("the worker cannot go on")
            self._send(WorkerFailed(f"{type(error).__name__}: {error}"))
            raise SystemExit(1) from error
        finally:
            if self._cache_events is not None:
                self._cache_events.close()
            self._socket.close(linger=1000)
            self._context.term()

    def _open_cache_events(self) -> None:
        """Opens the events port before the model loads, so that a port in use is reported at once."""
        fd_config = self._start.fd_config
        port, rank = fd_config.cache_config.cache_queue_port, fd_config.parallel_config.data_parallel_rank
        if port is not None:
            self._cache_events = KVEventPublisher(self._context, port, rank)

    def _start_engine(self) -> EngineCore:
        began = time.monotonic()
        fd_config = self._start.fd_config
        if fd_config.structured_outputs_config.vllm_compat:
            vllm_compat.install()
        if fd_config.structured_outputs_config.fastdeploy_compat:
            fastdeploy_compat.install()
        load_general_plugins()
        engine = EngineCore(fd_config, partial(self._build_chain, fd_config), show_progress=sys.stderr.isatty())
        # All libraries are loaded: a process killed from now on leaves no entries.
        shared_memory.remove_of(os.getpid())
        # Start-up objects live until exit: no later collection needs to scan them.
        gc.collect()
        gc.freeze()
        self._send(WorkerReady(time.monotonic() - began, engine.runner.chain.argmax_invariant))
        return engine

    def _build_chain(self, fd_config: FDConfig) -> LogitsProcessorChain:
        objects = {spec: cloudpickle.loads(data) for spec, data in self._start.pickled_processors.items()}
        policy = fd_config.structured_outputs_config
        declared = load_processors(
            policy.logits_processors, objects, mandatory=policy.mandatory, vllm_entry_points=policy.vllm_compat
        )
        fd = self._start.running_calls_fd
        calls = None if fd is None else RunningCalls(fd)
        return LogitsProcessorChain(declared, fd_config, calls=calls, quarantine=self._start.quarantine)

    def _receive(self, engine: EngineCore) -> bool:
        """Handles all pending messages; returns False to end the loop.

        Waits for a message, or for a sequence to be prepared, while there is nothing to compute.
        """
        while self._poll(engine):
            message: Any = self._inbox.decode(self._socket.recv())
            if isinstance(message, AddRequest):
                engine.add(message)
            elif isinstance(message, AbortRequests):
                engine.abort(message.request_ids)
                self._send(engine.load())
            elif isinstance(message, ResetProcessor):
                engine.reset_processor(message.name)
                self._send(engine.load())
            elif isinstance(message, Shutdown):
                return False
        return True

    def _poll(self, engine: EngineCore) -> bool:
        """Returns True if a message is pending."""
        events = dict(self._poller.poll(0 if engine.can_step else None))
        wake_up = engine.preparing.wake_up
        if wake_up.fileno() in events:
            wake_up.clear()
        return self._socket in events

    def _publish_cache_events(self, engine: EngineCore) -> None:
        if self._cache_events is not None:
            self._cache_events.publish(engine.take_cache_events())

    def _send(self, message: FromWorker) -> None:
        self._socket.send(encode(message))


def _exit_with_parent(pipe: RawIOBase, endpoint: str, parent: int) -> None:
    """Exits when stdin ends: the API process never closes it while alive, so this process is orphaned."""
    pipe.read(1)
    logger.error("the API process is gone")
    scheme, _, path = endpoint.partition("://")
    if scheme == "ipc":  # it can not remove its socket's folder any more
        shutil.rmtree(Path(path).parent, ignore_errors=True)
    for pid in (os.getpid(), parent):
        shared_memory.remove_of(pid)
    os._exit(ORPHANED)
