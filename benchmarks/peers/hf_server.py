"""Serves Hugging Face `generate` over an OpenAI-compatible chat API, one batch at a time.

The baseline of a server around `generate` without an engine: the waiting requests form a batch, padded on the left, and
later requests wait for its end. Greedy only. Started by ``benchmarks/compare.py``;
by hand: ``python benchmarks/peers/hf_server.py MODEL_DIRECTORY --port 8190``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel
from tokenizers.decoders import DecodeStream
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

SERVED_NAME = "default"


class ChatBody(BaseModel):
    """The fields of a chat request that this server acts on; others are ignored."""

    messages: list[dict[str, str]]
    max_tokens: int = 128
    ignore_eos: bool = False
    stream: bool = False


@dataclass
class Waiting:
    """A request between its arrival and its last token; `chunks` ends with an Exception or None."""

    body: ChatBody
    loop: asyncio.AbstractEventLoop
    chunks: asyncio.Queue[str | Exception | None] = field(default_factory=asyncio.Queue)
    prompt_tokens: int = 0
    output_tokens: int = 0

    def put(self, chunk: str | Exception | None) -> None:
        """Hands a piece of text, a fault or the end to the event loop; called by the thread of the model."""
        self.loop.call_soon_threadsafe(self.chunks.put_nowait, chunk)


class BatchStreamer(BaseStreamer):  # type: ignore[misc, unused-ignore]
    """Sends the tokens of each row on as text; transformers' own streamers take one row only."""

    def __init__(self, tokenizer: Any, batch: Sequence[Waiting], eos_token_id: int) -> None:
        self._tokenizer = tokenizer._tokenizer
        self._rows = list(batch)
        self._eos = eos_token_id
        self._decoders = [DecodeStream(skip_special_tokens=True) for _ in batch]
        self._done = [False] * len(self._rows)
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        """Takes the next token of every row, [rows] int64; the first call brings the prompts."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        for row, token in enumerate(value.tolist()):
            self._take(row, token)

    def _take(self, row: int, token: int) -> None:
        waiting = self._rows[row]
        if self._done[row]:
            return
        waiting.output_tokens += 1
        text = self._decoders[row].step(self._tokenizer, token)
        if text:
            waiting.put(text)
        ended = token == self._eos and not waiting.body.ignore_eos
        if ended or waiting.output_tokens == waiting.body.max_tokens:
            self._done[row] = True
            waiting.put(None)

    def end(self) -> None:
        """Rows end by themselves."""


class BatchGenerator(threading.Thread):
    """The thread that owns the model: takes what waits, at most `max_batch`, and generates it to its end."""

    def __init__(self, directory: str, max_batch: int) -> None:
        super().__init__(daemon=True)
        self.waiting: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        self._max_batch = max_batch
        self._tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def run(self) -> None:
        """Serves until the process ends."""
        while True:
            batch = [self.waiting.get()]
            while len(batch) < self._max_batch and not self.waiting.empty():
                batch.append(self.waiting.get())
            # `generate` has one least length for a whole batch.
            for full in (True, False):
                if rows := [waiting for waiting in batch if waiting.body.ignore_eos is full]:
                    self._answer(rows)

    def _answer(self, batch: Sequence[Waiting]) -> None:
        try:
            self._generate(batch)
        except Exception as error:  # noqa: BLE001 - the requests get it; the next batch may well work
            for waiting in batch:
                waiting.put(error)

    def _generate(self, batch: Sequence[Waiting]) -> None:
        texts = [
            self._tokenizer.apply_chat_template(x.body.messages, tokenize=False, add_generation_prompt=True)
            for x in batch
        ]
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        for waiting, mask in zip(batch, inputs["attention_mask"], strict=True):
            waiting.prompt_tokens = int(mask.sum())
        length = max(x.body.max_tokens for x in batch)
        full = batch[0].body.ignore_eos
        streamer = BatchStreamer(self._tokenizer, batch, self._tokenizer.eos_token_id)
        with torch.inference_mode():
            self._model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=length,
                min_new_tokens=length if full else None,
                streamer=streamer,
            )


def usage(waiting: Waiting) -> dict[str, int]:
    """The counts in OpenAI's form."""
    total = waiting.prompt_tokens + waiting.output_tokens
    return {"prompt_tokens": waiting.prompt_tokens, "completion_tokens": waiting.output_tokens, "total_tokens": total}


def event(**fields: Any) -> str:
    """One server-sent event of a stream."""
    return f"data: {json.dumps({'object': 'chat.completion.chunk', 'model': SERVED_NAME} | fields)}\n\n"


async def stream(waiting: Waiting) -> AsyncIterator[str]:
    """The events of one answer."""
    while (chunk := await waiting.chunks.get()) is not None:
        if isinstance(chunk, Exception):
            yield event(error={"message": str(chunk), "type": "server_error"})
            return
        yield event(choices=[{"index": 0, "delta": {"content": chunk}, "finish_reason": None}])
    reason = "length" if waiting.output_tokens == waiting.body.max_tokens else "stop"
    yield event(choices=[{"index": 0, "delta": {}, "finish_reason": reason}])
    yield event(choices=[], usage=usage(waiting))
    yield "data: [DONE]\n\n"


def build_app(generator: BatchGenerator) -> FastAPI:
    """The HTTP side."""
    app = FastAPI()

    @app.get("/health")
    def health() -> Response:
        return Response()

    @app.get("/v1/models")
    def models() -> Response:
        return JSONResponse({"object": "list", "data": [{"id": SERVED_NAME, "object": "model"}]})

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatBody) -> Response:
        if not body.stream:
            return JSONResponse({"error": {"message": "stream: only true is served"}}, status_code=400)
        waiting = Waiting(body, asyncio.get_running_loop())
        generator.waiting.put(waiting)
        return StreamingResponse(stream(waiting), media_type="text/event-stream")

    return app


def main() -> None:
    """Loads the model, then listen."""
    parser = argparse.ArgumentParser(description="Serve Hugging Face generate, one batch at a time.")
    parser.add_argument("directory", help="model in Hugging Face layout")
    parser.add_argument("--port", type=int, default=8190)
    parser.add_argument("--max-batch", type=int, default=32, help="requests in one batch (default: 32)")
    args = parser.parse_args()
    generator = BatchGenerator(args.directory, args.max_batch)
    generator.start()
    uvicorn.run(build_app(generator), host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
