"""A following rank: holds its part of the model and repeats the first rank's model calls."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
from io import RawIOBase

import msgspec
import paddle

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.config.log_format import configure_from_environment
from fastdeploy_lp.logits_processor import fastdeploy_compat, vllm_compat
from fastdeploy_lp.model_executor.causal_lm import load_causal_lm
from fastdeploy_lp.model_executor.models.registry import CausalLM, CopiesBlocks, WarmsUp
from fastdeploy_lp.model_executor.parallel.communicator import Communicator
from fastdeploy_lp.platforms import current_platform, shared_memory
from fastdeploy_lp.plugins import load_class, load_general_plugins
from fastdeploy_lp.worker.pipe import read_frame, write_frame
from fastdeploy_lp.worker.tensor_parallel.commands import (
    Command,
    ComputeLogits,
    CopyBlock,
    Forward,
    InitializeCache,
    RankLoaded,
    RankStart,
    WarmUp,
)

logger = logging.getLogger(__name__)


def main() -> None:
    """Reads RankStart and then commands from stdin; the end of stdin ends this process at any time."""
    configure_from_environment("rank")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115 - open for the process's life
    start = msgspec.msgpack.decode(read_frame(pipe), type=RankStart)
    commands: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(pipe, commands), daemon=True).start()
    try:
        _follow(start, commands)
    except Exception:
        logger.exception("rank %d cannot go on", start.place.rank)
        raise SystemExit(1) from None


def _read_commands(pipe: RawIOBase, commands: queue.SimpleQueue[bytes]) -> None:
    """Reads commands in a separate thread, since the main thread may wait forever for a lost rank."""
    try:
        while True:
            commands.put(read_frame(pipe))
    except EOFError:
        # The first rank never closes this stdin while it serves.
        shared_memory.remove_of(os.getpid())
        os._exit(0)


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _follow(start: RankStart, commands: queue.SimpleQueue[bytes]) -> None:
    if start.fd_config.structured_outputs_config.vllm_compat:
        vllm_compat.install()
    if start.fd_config.structured_outputs_config.fastdeploy_compat:
        fastdeploy_compat.install()
    load_general_plugins()
    current_platform().configure(start.fd_config)
    communicator: Communicator = load_class(start.communicator_class, Communicator)(start.place)
    model = _load(start, communicator)
    # All libraries are loaded: a process killed from now on leaves no entries.
    shared_memory.remove_of(os.getpid())
    decoder = msgspec.msgpack.Decoder(Command)
    while True:
        command = decoder.decode(commands.get())
        if model is not None:
            _obey(command, model, communicator)


def _load(start: RankStart, communicator: Communicator) -> CausalLM | None:
    """Returns this rank's part of the model; None for an unusable checkpoint, which the first rank reports."""
    model, report = None, RankLoaded()
    try:
        model = load_causal_lm(start.fd_config, communicator=communicator)
    except CheckpointError as error:
        report = RankLoaded(str(error))
    with open(start.reports, "wb") as pipe:
        write_frame(pipe, msgspec.msgpack.encode(report))
    return model


def _obey(command: Command, model: CausalLM, communicator: Communicator) -> None:
    match command:
        case Forward(chunks):
            model.forward([chunk.unpack() for chunk in chunks])
        case ComputeLogits(shape):
            hidden = paddle.empty(shape, "float32")
            communicator.broadcast(hidden)
            model.compute_logits(hidden)
        case InitializeCache(num_blocks):
            model.initialize_cache(num_blocks)
        case WarmUp(max_num_seqs):
            if isinstance(model, WarmsUp):
                model.warm_up(max_num_seqs)
        case CopyBlock(source, target):
            if isinstance(model, CopiesBlocks) and (copy := model.block_copier()) is not None:
                copy(source, target)
