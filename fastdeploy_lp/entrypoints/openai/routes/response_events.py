"""A response, whole or event by event: its items while they grow, and the events that report them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import BaseModel

from fastdeploy_lp.entrypoints.openai.json_pieces import PiecedObject, Pieces, array
from fastdeploy_lp.entrypoints.openai.protocol.chat import AssistantMessage, ChatChunkChoice
from fastdeploy_lp.entrypoints.openai.protocol.error import ErrorInfo
from fastdeploy_lp.entrypoints.openai.protocol.request import now
from fastdeploy_lp.entrypoints.openai.protocol.response_items import (
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    new_item_id,
)
from fastdeploy_lp.entrypoints.openai.protocol.responses import (
    IncompleteDetails,
    Response,
    ResponseError,
    ResponseUsage,
)
from fastdeploy_lp.entrypoints.openai.protocol.trace import outputs_pieces
from fastdeploy_lp.entrypoints.openai.protocol.usage import Usage
from fastdeploy_lp.entrypoints.openai.routes.chat import MessageReader
from fastdeploy_lp.request.outputs import CompletionDelta, joined_outputs


def _encode_model(model: Any) -> msgspec.Raw:
    if isinstance(model, BaseModel):
        return msgspec.Raw(model.model_dump_json().encode())
    raise TypeError(f"no JSON for {type(model).__name__}")


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_model)


class EventNumbers:
    """Encoder of the events of one stream, which are numbered from 0."""

    def __init__(self) -> None:
        self._next = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        """Returns one server-sent event."""
        body = {"type": kind, "sequence_number": self._next, **fields}
        self._next += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), _ENCODER.encode(body))


class GrowingItem(ABC):
    """One item of the output, from its first piece of text to its last.

    events: `EVENTS.delta` and `EVENTS.done` are the events of its text. prefix: of its id. part: class of its only
    content part; None for an item without parts. details: fields that a delta has besides the text.
    """

    events: ClassVar[str]
    prefix: ClassVar[str]
    part: ClassVar[type[OutputText | ReasoningText] | None] = None
    details: ClassVar[dict[str, Any]] = {}

    def __init__(self, numbers: EventNumbers, index: int) -> None:
        self.id = new_item_id(self.prefix)
        self._event = numbers.event
        self._index = index
        self._texts = list[str]()
        self._place: dict[str, Any] = {"item_id": self.id, "output_index": index}
        if self.part is not None:
            self._place["content_index"] = 0

    @abstractmethod
    def item(self, status: ItemStatus, text: str | None) -> OutputItem:
        """Returns the item with this text; with None, as it begins."""

    def _last(self, text: str) -> dict[str, Any]:
        """Returns the fields of the event that ends the text."""
        return {"text": text}

    def begin(self) -> bytes:
        """Returns the events that the item begins with."""
        added = self._event("response.output_item.added", output_index=self._index, item=self.item("in_progress", None))
        if self.part is None:
            return added
        return added + self._event("response.content_part.added", **self._place, part=self.part(text=""))

    def grow(self, text: str, details: dict[str, Any]) -> bytes:
        """Returns the event of another piece of text; details: its further fields."""
        self._texts.append(text)
        return self._event(f"{self.events}.delta", **self._place, delta=text, **{**self.details, **details})

    def end(self, status: ItemStatus) -> tuple[OutputItem, bytes]:
        """Returns the whole item, and the events that it ends with."""
        text = "".join(self._texts)
        item = self.item(status, text)
        done = self._event(f"{self.events}.done", **self._place, **self._last(text))
        if self.part is not None:
            done += self._event("response.content_part.done", **self._place, part=self.part(text=text))
        return item, done + self._event("response.output_item.done", output_index=self._index, item=item)


class GrowingText(GrowingItem):
    """The message."""

    events = "response.output_text"
    prefix = "msg"
    part = OutputText
    details: ClassVar[dict[str, Any]] = {"logprobs": []}

    def item(self, status: ItemStatus, text: str | None) -> OutputMessage:
        """Returns the message."""
        return OutputMessage(id=self.id, status=status, content=[] if text is None else [OutputText(text=text)])

    def _last(self, text: str) -> dict[str, Any]:
        # The deltas had the logprobs; encoding all of a long answer's in one event would take long.
        return {"text": text, "logprobs": []}


class GrowingReasoning(GrowingItem):
    """The reasoning."""

    events = "response.reasoning_text"
    prefix = "rs"
    part = ReasoningText

    def item(self, status: ItemStatus, text: str | None) -> OutputReasoning:
        """Returns the reasoning."""
        content = [] if text is None else [ReasoningText(text=text)]
        return OutputReasoning(id=self.id, status=status, content=content)


class GrowingCall(GrowingItem):
    """A call; its text are the arguments."""

    events = "response.function_call_arguments"
    prefix = "fc"

    def __init__(self, numbers: EventNumbers, index: int, call_id: str, name: str) -> None:
        super().__init__(numbers, index)
        self._call_id = call_id
        self._name = name

    def item(self, status: ItemStatus, text: str | None) -> OutputCall:
        """Returns the call."""
        return OutputCall(id=self.id, status=status, call_id=self._call_id, name=self._name, arguments=text or "")

    def _last(self, text: str) -> dict[str, Any]:
        return {"name": self._name, "arguments": text}


ErrorCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
CODES: dict[int, ErrorCode] = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


def end(response: Response, finish_reason: str | None, usage: Usage) -> ItemStatus:
    """Sets how a response has ended; returns the status of its last item."""
    response.usage = ResponseUsage.of(usage)
    response.completed_at = now()
    response.status = "completed"
    if finish_reason == "length":
        response.status, response.incomplete_details = "incomplete", IncompleteDetails(reason="max_output_tokens")
    elif finish_reason == "abort":
        response.status = "cancelled"
    return "completed" if response.status == "completed" else "incomplete"


def fail(response: Response, status: int, info: ErrorInfo) -> None:
    """Sets the error that a response has ended with; status: of HTTP."""
    response.status = "failed"
    response.error = ResponseError(code=CODES.get(status, "server_error"), message=info.message)


def output_of(message: AssistantMessage, status: ItemStatus) -> list[OutputItem]:
    """Returns the items of a whole message: reasoning, text, calls; `status` is that of the last one."""
    items, calls = list[OutputItem](), message.tool_calls or []
    if message.reasoning_content:
        reasoning = ReasoningText(text=message.reasoning_content)
        items.append(OutputReasoning(id=new_item_id("rs"), status="completed", content=[reasoning]))
    if message.content or not calls:
        text = OutputText(text=message.content or "")
        items.append(OutputMessage(id=new_item_id("msg"), status="completed", content=[text]))
    items += [
        OutputCall(
            id=new_item_id("fc"),
            status="completed",
            call_id=call.id,
            name=call.function.name,
            arguments=call.function.arguments,
        )
        for call in calls
    ]
    items[-1].status = status
    return items


def in_pieces(response: Response, logprobs: Pieces | None, members: Mapping[str, Pieces]) -> PiecedObject:
    """Returns a whole response with its long members: the message's logprobs, and `members` by their names."""
    if logprobs is not None:
        members = {**members, "output": array([_item_pieces(item, logprobs) for item in response.output])}
    return PiecedObject(response, members)


def _item_pieces(item: OutputItem, logprobs: Pieces) -> PiecedObject:
    if not isinstance(item, OutputMessage):
        return PiecedObject(item)
    (text,) = item.content
    return PiecedObject(item, {"content": array([PiecedObject(text, {"logprobs": logprobs})])})


class ResponseEvents:
    """Encoder of a response's events, from `opening` over `of` each delta to `closing` and `ending`, or `failed`."""

    def __init__(self, response: Response, reader: MessageReader) -> None:
        self.response = response
        self.num_tokens = 0
        self.reader = reader
        self._numbers = EventNumbers()
        self._open: GrowingItem | None = None
        self._finish_reason: str | None = None
        # Fields of the last tokens, if these had no text: the last event has them.
        self._rest: dict[str, Any] = {}

    def opening(self) -> bytes:
        """Returns the first events."""
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._numbers.event(kind, response=self.response) for kind in kinds)

    def of(self, _place: int, delta: CompletionDelta) -> bytes:
        """Returns the events of a delta; empty while its meaning is undecided."""
        self.num_tokens += len(delta.token_ids)
        if self.reader.is_plain and delta.is_text:
            return self._grow(GrowingText, delta.text, {}) if delta.text else b""
        choice = self.reader.chunk(delta)
        return b"" if choice is None else self._of_choice(choice)

    def closing(self, usage: Usage) -> bytes:
        """Returns the events that the last item ends with; the response is whole then."""
        status = end(self.response, self._finish_reason, usage)
        if self._open is None and not self.response.output:
            return self._grow(GrowingText, "", {}) + self._close(status)
        return self._close(status)

    def ending(self) -> bytes:
        """Returns the last event."""
        # OpenAI's streams have no separate event for a response that was cancelled.
        kind = "response.completed" if self.response.status == "completed" else "response.incomplete"
        return self._numbers.event(kind, response=self.response, **self._rest)

    def failed(self, status: int, info: ErrorInfo) -> bytes:
        """Returns the last event of a response that failed."""
        fail(self.response, status, info)
        return self._numbers.event("response.failed", response=self.response)

    def _of_choice(self, choice: ChatChunkChoice) -> bytes:
        details, events, delta = _details(choice), b"", choice.delta
        values = joined_outputs(self.response.logits_processors_outputs, choice.logits_processors_outputs)
        self.response.logits_processors_outputs = values
        if delta.reasoning_content:
            events += self._grow(GrowingReasoning, delta.reasoning_content, details)
            details = {}
        # A chunk that is neither text nor the last one has token ids to report.
        if delta.content or (choice.finish_reason is None and not events and not delta.tool_calls):
            events += self._grow(GrowingText, delta.content or "", details)
            details = {}
        for call in delta.tool_calls or []:
            if call.id is not None:
                events += self._close("completed")
                self._open = GrowingCall(self._numbers, len(self.response.output), call.id, call.function.name or "")
                events += self._open.begin()
            if self._open is not None and call.function.arguments:
                events += self._open.grow(call.function.arguments, details)
                details = {}
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
            self.response.stop_reason = choice.stop_reason
            self.response.logits_processors_shadow = choice.logits_processors_shadow
            self._rest = details
        return events

    def _grow(self, kind: type[GrowingText | GrowingReasoning], text: str, details: dict[str, Any]) -> bytes:
        events = b""
        if not isinstance(self._open, kind):
            events = self._close("completed")
            self._open = kind(self._numbers, len(self.response.output))
            events += self._open.begin()
        return events + self._open.grow(text, details)

    def _close(self, status: ItemStatus) -> bytes:
        if self._open is None:
            return b""
        item, events = self._open.end(status)
        self.response.output.append(item)
        self._open = None
        return events


def _details(choice: ChatChunkChoice) -> dict[str, Any]:
    """Returns the fields about a chunk's tokens."""
    names = ("token_ids", "logits_processors_trace")
    details = {name: value for name in names if (value := getattr(choice, name)) is not None}
    if choice.logits_processors_outputs is not None:
        # The events' encoder has no integers of more than 64 bits.
        details["logits_processors_outputs"] = msgspec.Raw(b"".join(outputs_pieces(choice.logits_processors_outputs)))
    return details if choice.logprobs is None else details | {"logprobs": choice.logprobs.content}
