"""The server: its sockets, its engine, and its life from the options to the last signal."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import uvicorn
import uvloop
from fastapi import FastAPI
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp

from fastdeploy_lp.config.log_format import FORMAT_VARIABLE, LEVEL_VARIABLE, configure_logging
from fastdeploy_lp.engine.client.data_parallel import make_engine
from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.logged_request import LoggedEngine
from fastdeploy_lp.engine.client.request_log import RequestLog
from fastdeploy_lp.engine.errors import EngineDeadError, EngineStartError
from fastdeploy_lp.engine.metrics import PREFIX
from fastdeploy_lp.entrypoints.declare import DeclaredEngine, declare_engine
from fastdeploy_lp.entrypoints.openai import errors
from fastdeploy_lp.entrypoints.openai.app import build_app
from fastdeploy_lp.entrypoints.openai.listener.bounds import connection_bounds
from fastdeploy_lp.entrypoints.openai.listener.connections import IDLE_SECONDS, Connection, connection_class
from fastdeploy_lp.entrypoints.openai.listener.http_server import (
    LAST_BYTES_SECONDS,
    HTTPServer,
    ServerLife,
    StopSignals,
)
from fastdeploy_lp.entrypoints.openai.policy.policies import Policies
from fastdeploy_lp.entrypoints.openai.routes.server import metrics_route
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.entrypoints.playground.routes import PATH as PLAYGROUND
from fastdeploy_lp.entrypoints.usage import MISUSED
from fastdeploy_lp.platforms import shared_memory
from fastdeploy_lp.startup.engine_args import EngineArgs


class RequestLogCollector(Collector):
    """Numbers of recorded requests and of requests that could not be recorded."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """Yields one metric family per counter."""
        yield CounterMetricFamily(f"{PREFIX}request_log_records", "Requests written to the log", self._log.recorded)
        yield CounterMetricFamily(f"{PREFIX}request_log_dropped", "Requests that are not in it", self._log.dropped)


def metrics_app(engine: Engine, *, vllm_names: bool = False) -> ASGIApp:
    """Returns an application that answers GET /metrics only."""
    app = FastAPI(openapi_url=None)
    errors.install(app)
    app.include_router(metrics_route(engine, vllm_names=vllm_names))
    return app


class MetricsServer:
    """Server on `listener` from `start` to `stop`; shares the API server's event loop and connection bounds."""

    def __init__(self, server: HTTPServer, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts serving."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    async def stop(self) -> None:
        """Stops at once: one lost scrape does no harm."""
        self._server.end(at_once=True)
        if self._serving is not None:
            await asyncio.gather(self._serving, return_exceptions=True)


FAILED = 1

logger = logging.getLogger(__name__)


def serve(argv: Sequence[str] | None, prog: str) -> None:
    """Serves until a signal arrives; reports every option error in one line before the model loads."""
    description = "Serve a model over the OpenAI API. The model may also come first, without --model."
    parser = OptionsParser(EngineArgs, ServerArgs, first="model", prog=prog, description=description)
    engine_args, server_args = parser.parse_options(argv)
    configure_logging(server_args.log_level, server_args.log_format)
    # The worker process inherits them.
    os.environ |= {LEVEL_VARIABLE: server_args.log_level, FORMAT_VARIABLE: server_args.log_format}
    try:
        with ExitStack() as stack:
            listeners = _Listeners.of(server_args, stack)
            setup = declare_engine(engine_args.of_a_server(), progress=sys.stderr.isatty())
            logger.info("loading %s", engine_args.model)
            uvloop.run(_serve(setup, server_args, listeners))
    except (ValueError, EngineStartError) as error:
        _exit_with(str(error), MISUSED)
    except EngineDeadError as error:
        _exit_with(f"the engine is down: {error}", FAILED)
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


async def _serve(setup: DeclaredEngine, args: ServerArgs, listeners: _Listeners) -> None:
    """Accepts requests at once, with status 503 until the worker is ready; raises EngineDeadError."""
    signals = StopSignals()
    engine = make_engine(setup.fd_config, setup.declared, setup.stat_loggers, fair_queue=args.fair_queue)
    if args.request_log is not None:
        engine.request_log = _open_request_log(engine, args.request_log, args.request_log_max_bytes)
    policies = None
    if args.policy is not None:
        shadow = setup.fd_config.structured_outputs_config.shadow
        knows_keys = bool(args.api_key or args.admin_api_key)
        policies = Policies(args.policy, setup.declared, shadow, engine.inputs.chosen, knows_keys=knows_keys)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, policies.reload_soon)
    bounds = connection_bounds(args.max_connections, args.max_connections_per_client)
    protocol = connection_class(bounds)
    metrics = None
    try:
        if listeners.metrics is not None:
            shown = metrics_app(engine, vllm_names=args.vllm_metrics)
            metrics = MetricsServer(HTTPServer(_uvicorn_config(shown, protocol), bounds), listeners.metrics)
            metrics.start()
        app = build_app(engine, args, setup.io_processor, policies)
        server = HTTPServer(_uvicorn_config(app, protocol, _tls(args)), bounds)
        life = ServerLife(server, engine, signals, args.timeout_graceful_shutdown)
        # The processors' libraries are loaded: a process that is killed once it is ready leaves no shared memory.
        shared_memory.remove_of(os.getpid())
        started = await life.run(listeners.api, lambda: _on_ready(engine, args, listeners.api))
    finally:
        await engine.shutdown()
        if engine.request_log is not None:
            await asyncio.to_thread(engine.request_log.close)
        if metrics is not None:
            await metrics.stop()
    if signal.SIGINT in signals.received:
        raise KeyboardInterrupt
    if not started:
        raise SystemExit(128 + signal.SIGTERM)


def _open_request_log(engine: Engine, path: str, max_bytes: int) -> RequestLog:
    log = RequestLog(Path(path), LoggedEngine.of(engine.fd_config), max_bytes)
    engine.metrics.registry.register(RequestLogCollector(log))
    return log


def _on_ready(engine: Engine, args: ServerArgs, listener: socket.socket) -> None:
    # Objects created at startup live until exit: exclude them from garbage collection.
    gc.collect()
    gc.freeze()
    print(_banner(engine, args, listener), flush=True)  # noqa: T201 - for the person who started it


def _tls(args: ServerArgs) -> dict[str, Any]:
    names = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs")
    return {name: getattr(args, name) for name in names}


def _uvicorn_config(app: ASGIApp, protocol: type[Connection], tls: dict[str, Any] | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        # uvicorn's lines use the logging of the process; requests are logged by our own middleware.
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        http=protocol,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=LAST_BYTES_SECONDS,
        **(tls or {}),
    )


def _banner(engine: Engine, args: ServerArgs, listener: socket.socket) -> str:
    fd_config = engine.fd_config
    host, port = listener.getsockname()[:2]
    processors = fd_config.structured_outputs_config.logits_processors
    chain = " → ".join(processors) or "none"
    where = f"platform {fd_config.device_config.platform}"
    url = f"{'https' if args.ssl_certfile else 'http'}://{host}:{port}/v1"
    # Never the key itself: this output ends up in logs.
    key = "-H 'Authorization: Bearer KEY' " if args.api_key else ""
    curl = f"curl {url}/chat/completions {key}-H 'Content-Type: application/json' -d"
    tries = "\n\n".join(f"{curl} '{json.dumps(body)}'" for body in _example_bodies(engine))
    page = url.removesuffix("/v1") + PLAYGROUND
    playground = f"\nSee what the processors do: {page}\n" if args.playground else ""
    return (
        f"\nTry it:\n\n{tries}\n"
        f"{playground}"
        f"\nServing {fd_config.model_config.served_model_name} on {url} ({where}; logits processors: {chain})."
    )


def _example_bodies(engine: Engine) -> list[dict[str, Any]]:
    """Returns a request, and with LogitBiasLogitsProcessor the same one with a bias that changes its answer."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": 32, "temperature": 0}
    declared = engine.fd_config.structured_outputs_config.logits_processors
    if "LogitBiasLogitsProcessor" not in declared or not engine.tokenizer.handles_text:
        return [body]
    (banned, *_) = engine.tokenizer.encode(" Paris", add_special_tokens=False)
    return [body, {**body, "logits_processors_args": {"logit_bias": {str(banned): -100.0}}}]


@dataclasses.dataclass(frozen=True)
class _Listeners:
    """Sockets bound first, to report a port in use at once; connections are accepted after all checks."""

    api: socket.socket
    metrics: socket.socket | None

    @classmethod
    def of(cls, args: ServerArgs, stack: ExitStack) -> _Listeners:
        """Binds the sockets of the options, which `stack` closes; raises ValueError naming the option."""
        api = stack.enter_context(_listen("port", args.host, args.port))
        if args.metrics_port in (None, args.port):
            return cls(api, None)
        return cls(api, stack.enter_context(_listen("metrics_port", args.host, args.metrics_port or 0)))


def _listen(option: str, host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ValueError(f"{option}: cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def _exit_with(message: str, status: int) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line the operator needs
    raise SystemExit(status)
