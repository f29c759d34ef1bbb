"""`python -m fastdeploy_lp.entrypoints.openai.api_server --model … --logits-processors …`."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar
from wsgiref.simple_server import WSGIServer

import uvicorn
import uvloop
from prometheus_client import start_http_server

from fastdeploy_lp.config import EngineArgs, FDConfig, require_port
from fastdeploy_lp.engine.engine_client import EngineClient
from fastdeploy_lp.engine.errors import EngineStartError
from fastdeploy_lp.entrypoints.declare import declare_engine
from fastdeploy_lp.entrypoints.openai.app import build_app
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.logits_processor import DeclaredProcessor

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass
class ServerArgs:
    """Options of the HTTP server."""

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on; 0.0.0.0 for every interface"})
    port: int = field(default=8000, metadata={"help": "port of the API"})
    metrics_port: int | None = field(default=None, metadata={"help": "port of /metrics (default: the API's own port)"})
    timeout_graceful_shutdown: int = field(
        default=30, metadata={"help": "seconds that running requests get to finish after SIGTERM"}
    )
    allow_extra_fields: bool = field(
        default=False, metadata={"help": "ignore unknown fields of bodies, with a warning a name, instead of refusing"}
    )

    def __post_init__(self) -> None:
        require_port("port", self.port)
        require_port("metrics_port", self.metrics_port)
        if self.timeout_graceful_shutdown < 0:
            raise ValueError("timeout_graceful_shutdown: must be 0 or more seconds")


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Serve until a signal ends it; everything that can be wrong is told in one line before the model loads."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("fastdeploy_lp").setLevel(logging.INFO)
    parser = OptionsParser(EngineArgs, ServerArgs, prog=prog, description="Serve a model over the OpenAI API.")
    engine_args, server_args = parser.parse_options(argv)
    try:
        with _listen(server_args) as listener:
            setup = declare_engine(engine_args, progress=sys.stderr.isatty())
            uvloop.run(_serve(setup.fd_config, setup.declared, server_args, listener))
    except (ValueError, EngineStartError) as error:
        _exit_with(str(error))
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


async def _serve(
    fd_config: FDConfig, declared: list[DeclaredProcessor], args: ServerArgs, listener: socket.socket
) -> None:
    engine = EngineClient(fd_config, declared)
    own_metrics = args.metrics_port in (None, args.port)
    metrics = None
    try:
        if not own_metrics:
            metrics = _serve_metrics(engine, args)
        await _unless_signalled(engine.start())
        app = build_app(engine, with_metrics=own_metrics, allow_extra_fields=args.allow_extra_fields)
        # What a server starts with stays: no collection need ever look at it again.
        gc.collect()
        gc.freeze()
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=args.timeout_graceful_shutdown, lifespan="off"
        )
        ended_by = _note_signals()
        await _Server(config, fd_config, listener).serve(sockets=[listener])
    finally:
        await engine.shutdown()
        if metrics is not None:
            await asyncio.to_thread(_stop_metrics, *metrics)
    if signal.SIGINT in ended_by:
        raise KeyboardInterrupt


def _note_signals() -> list[int]:
    """The numbers of the signals that arrive.

    uvicorn takes over while it serves and raises its signals again when it is done; by default those would end the
    process right there, before the worker and its socket are cleaned up.
    """
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: received.append(number))
    return received


class _Server(uvicorn.Server):
    """Says how to use it once it listens."""

    def __init__(self, config: uvicorn.Config, fd_config: FDConfig, listener: socket.socket) -> None:
        super().__init__(config)
        self._banner = _banner(fd_config, listener)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._banner, flush=True)  # noqa: T201 - for the person who started it


def _banner(fd_config: FDConfig, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Who is Lu Xun?"}], "max_tokens": 64}
    processors = fd_config.structured_outputs_config.logits_processors
    if "LogitBiasLogitsProcessor" in processors:
        body["logits_processors_args"] = {"logit_bias": {"128": 5.0, "2": -10.0}}
    chain = " → ".join(processors) or "none"
    return (
        f"\nServing {fd_config.model_config.served_model_name} on http://{host}:{port}/v1 (logits processors: {chain})."
        f"\nTry it:\n\ncurl http://{host}:{port}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d '{json.dumps(body)}'\n"
    )


def _listen(args: ServerArgs) -> socket.socket:
    """Bound before the model loads, so that a port in use is told at once; connections are taken when it is ready."""
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((args.host, args.port))
    except OSError as error:
        listener.close()
        raise ValueError(f"port: cannot listen on {args.host}:{args.port}: {error.strerror}") from None
    return listener


def _serve_metrics(engine: EngineClient, args: ServerArgs) -> tuple[WSGIServer, threading.Thread]:
    try:
        return start_http_server(args.metrics_port or 0, args.host, engine.metrics.registry)
    except OSError as error:
        raise ValueError(f"metrics_port: cannot listen on {args.host}:{args.metrics_port}: {error.strerror}") from None


def _stop_metrics(server: WSGIServer, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()


async def _unless_signalled(starting: Coroutine[Any, Any, Result]) -> Result:
    """Wait for the start; SIGINT and SIGTERM end it with everything cleaned up, as they later end serving."""
    task = asyncio.ensure_future(starting)
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _exit_with(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line the operator needs
    raise SystemExit(2)


if __name__ == "__main__":
    main()
