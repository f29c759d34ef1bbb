"""Items of a streamed response while they grow, and the events that report them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel

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
