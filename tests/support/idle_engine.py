"""The server's application in this process, with a worker that takes requests and never answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from starlette.types import ASGIApp, Message

from fastdeploy_lp.config import ChatConfig, FDConfig, SchedulerConfig
from fastdeploy_lp.engine.client.engine_client import EngineClient
from fastdeploy_lp.engine.client.supervisor import WorkerHandle
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.entrypoints.openai.app import build_app
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.logits_processor.chain.calls import Culprit
from fastdeploy_lp.logits_processor.quarantine import Quarantine
from fastdeploy_lp.messages import FromWorker, ToWorker, WorkerReady
from support.tiny import tiny_fd_config, write_tiny_checkpoint

CONTEXT = 4096


class IdleWorker:
    """`sent` is what it was told."""

    pid = 1
    how_it_ended = ""

    def __init__(self) -> None:
        self.sent: list[ToWorker] = []

    async def start(self, _: dict[str, bytes], quarantine: Quarantine) -> WorkerReady:
        return WorkerReady(0.0)

    def send(self, message: ToWorker) -> None:
        self.sent.append(message)

    async def receive(self) -> FromWorker | None:
        await asyncio.Event().wait()
        return None

    def culprits(self, names: Sequence[str]) -> tuple[Culprit, ...]:
        return ()

    def kill(self) -> None:
        """There is no process."""

    async def stop(self) -> None:
        """There is no process."""


class HeldTokenizer(Tokenizer):
    """Waits where it cuts a text for as long as it is `held`; `texts` are those that it was given."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.texts: list[str] = []
        self.entered = threading.Event()
        self.released = threading.Event()
        self.released.set()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.texts.append(text)
        self.entered.set()
        self.released.wait()
        return super().encode(text, add_special_tokens=add_special_tokens)

    def hold(self) -> None:
        self.entered.clear()
        self.released.clear()


def config_in(folder: Path, scheduler: SchedulerConfig, chat: ChatConfig, name: str = "tiny-llama") -> FDConfig:
    """The configuration of a tiny model, whose checkpoint is written to `folder` unless it has one."""
    if not (folder / "config.json").exists():
        write_tiny_checkpoint(folder, context=CONTEXT)
    config = tiny_fd_config(max_model_len=CONTEXT)
    model = replace(config.model_config, directory=str(folder), served_model_name=name)
    return replace(config, model_config=model, scheduler_config=scheduler, chat_config=chat)


class Idle:
    """A running application, its engine, worker and tokenizer."""

    def __init__(self, folder: Path, scheduler: SchedulerConfig, args: ServerArgs) -> None:
        config = config_in(folder, scheduler, ChatConfig(trust_request_chat_template=True))
        self.worker = IdleWorker()
        self.engine = EngineClient(config, [], lambda: cast(WorkerHandle, self.worker))
        self.tokenizer = HeldTokenizer(folder)
        for part in (self.engine, self.engine.inputs, self.engine.inputs._prompt_text):
            name = "tokenizer" if part is self.engine else "_tokenizer"
            setattr(part, name, self.tokenizer)
        self.app: ASGIApp = build_app(self.engine, args)


@asynccontextmanager
async def idle(
    folder: Path, scheduler: SchedulerConfig | None = None, args: ServerArgs | None = None
) -> AsyncIterator[Idle]:
    running = Idle(folder, scheduler or SchedulerConfig(8, 64), args or ServerArgs(api_key=[]))
    await running.engine.start()
    try:
        yield running
    finally:
        running.tokenizer.released.set()
        await running.engine.shutdown()


class Client:
    """One that sends a body, and may leave; `status` is None without an answer."""

    def __init__(self, app: ASGIApp, path: str, body: bytes) -> None:
        self.status: int | None = None
        self.content = b""
        self._left = asyncio.Event()
        self._body: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        headers = [(b"content-type", b"application/json"), (b"host", b"here")]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": None,
        }
        self.ended = asyncio.ensure_future(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._left.set()

    async def begun(self) -> None:
        """Waits for the beginning of the answer."""
        async with asyncio.timeout(30):
            while self.status is None:
                await asyncio.sleep(0.001)

    async def answer(self) -> tuple[int | None, bytes]:
        await self.ended
        return self.status, self.content

    async def _receive(self) -> Message:
        if self._body:
            return self._body.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.content += message.get("body", b"")
