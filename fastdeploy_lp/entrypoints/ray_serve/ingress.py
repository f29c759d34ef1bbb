"""The ingress between Ray Serve's HTTP proxy and the replicas; it reads the prompt for the router."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorInfo, ErrorResponse
from fastdeploy_lp.entrypoints.openai.streaming.event_stream import server_sent_event
from fastdeploy_lp.entrypoints.ray_args import read_args
from fastdeploy_lp.entrypoints.ray_serve.prefix_router import ForwardedRequest, PrefixRouter, forwarded
from fastdeploy_lp.entrypoints.ray_serve.replica import EngineReplica, Message

logger = logging.getLogger(__name__)

# As with workers: a request present at two replica crashes may have caused them.
MAX_LOST_REPLICAS = 2
LOST = "replica_lost"
EVENT_STREAM = b"text/event-stream"


class ReplicaLostError(Exception):
    """The replica ended before its answer was complete."""


class Ingress:
    """Forwards each request to a replica, and to another one if the first ends before the client received a byte."""

    def __init__(self, replicas: DeploymentHandle, max_body_size: int) -> None:
        self._replicas = replicas.options(stream=True, method_name="answer")
        self._max_body_size = max_body_size

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Returns the ASGI application that Ray Serve calls with each request."""

        # A function, since Ray Serve starts the application with uvicorn, which takes a bound method for ASGI 2.
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await self.serve(scope, receive, send)

        return serve

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one ASGI exchange."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._exchange(forwarded(scope, await self._body(receive)), send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _body(self, receive: Receive) -> bytes:
        """Returns the body, or enough of it that the replica refuses it as too large."""
        parts: list[bytes] = []
        size = 0
        while size <= self._max_body_size:
            message = await receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if not message.get("more_body", False):
                break
        return b"".join(parts)

    async def _exchange(self, request: ForwardedRequest, send: Send) -> None:
        answer = Answer(send)
        for _ in range(MAX_LOST_REPLICAS):
            try:
                async with aclosing(self._messages(request)) as messages:
                    async for message in messages:
                        await answer.send(message)
                if not answer.ended:
                    raise ReplicaLostError("its answer is not complete")
                return
            except BackPressureError:
                await answer.fail(
                    429, "rate_limit_error", "rate_limit_exceeded", "all replicas are busy; try again later"
                )
                return
            except RayTaskError as error:
                logger.error("a request failed in its replica", exc_info=error)
                await answer.fail(500, "server_error", "request_failed", "the request could not go on")
                return
            except (RayActorError, DeploymentUnavailableError, ReplicaLostError) as error:
                logger.warning("a replica is lost: %s", " ".join(str(error).split()))
                if answer.begun:
                    break
        await answer.fail(503, "server_error", LOST, "the replica ended in the middle of this answer")

    async def _messages(self, request: ForwardedRequest) -> AsyncGenerator[Message, None]:
        response = self._replicas.remote(request)
        ended = False
        try:
            async for messages in response:
                for message in messages:
                    yield message
            ended = True
        finally:
            if not ended:
                response.cancel()


class Answer:
    """The response to a client; sends the head with the first piece of the body, so that a retry is possible before."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None
        self._streams = False
        self.begun = False
        self.ended = False

    async def send(self, message: Message) -> None:
        """Forwards a message from a replica."""
        if message["type"] == "http.response.start":
            self._head = message
            return
        if not self.begun and self._head is not None:
            self.begun = True
            headers = {name.lower(): value for name, value in self._head["headers"]}
            self._streams = headers.get(b"content-type", b"").startswith(EVENT_STREAM)
            await self._send(self._head)
        self.ended = not message.get("more_body", False)
        await self._send(message)

    async def fail(self, status: int, kind: str, code: str, text: str) -> None:
        """Ends with an OpenAI error, as a response or an event of a stream; breaks off other responses in progress."""
        error = ErrorResponse(error=ErrorInfo(message=text, type=kind, code=code))
        if self.begun:
            if not self._streams:
                raise ReplicaLostError(text)
            body = server_sent_event(error) + b"data: [DONE]\n\n"
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
            return
        body = error.model_dump_json().encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            headers.append((b"retry-after", b"1"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        asked: Any = await receive()
        await send({"type": f"{asked['type']}.complete"})
        if asked["type"] == "lifespan.shutdown":
            return


ENGINE, INGRESS = "Engine", "Ingress"
# Longer than the longest answer, so that an update drops none.
GRACEFUL_SECONDS = 600.0
# Requests that may wait in a replica's queue, per slot.
WAITING_PER_SLOT = 2
INGRESS_REQUESTS = 1000


def build_app(args: Mapping[str, Any]) -> serve.Application:
    """Builds an ingress and its replicas; `args`: command-line options, and `request-router` (prefix or ray).

    The configuration's `deployments`, named Ingress and Engine, set the numbers of replicas, resources and autoscaling.
    Raises ValueError naming the invalid option.
    """
    engine_args, server_args, router = read_args(args)
    slots = engine_args.max_num_seqs * engine_args.data_parallel_size
    keywords: dict[str, Any] = {}
    if router == "prefix":
        keywords["request_router_config"] = RequestRouterConfig(
            request_router_class=PrefixRouter, request_router_kwargs={"slots": slots}
        )
    engine = serve.deployment(
        EngineReplica,
        name=ENGINE,
        max_ongoing_requests=slots * (1 + WAITING_PER_SLOT),
        graceful_shutdown_timeout_s=GRACEFUL_SECONDS,
        **keywords,
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name=INGRESS,
        max_ongoing_requests=INGRESS_REQUESTS,
        graceful_shutdown_timeout_s=GRACEFUL_SECONDS,
    )
    return ingress.bind(engine.bind(engine_args, server_args), server_args.max_body_size)
