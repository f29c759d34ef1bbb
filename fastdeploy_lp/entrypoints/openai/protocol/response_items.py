"""Items of POST /v1/responses: items of a conversation, as clients send them and as answers have them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag, TypeAdapter, model_validator
from typing_extensions import Self

from fastdeploy_lp.entrypoints.openai.logprobs import ContentLogprob
from fastdeploy_lp.entrypoints.openai.protocol.request import EachOf, RequestModel, require_few
from fastdeploy_lp.request.limits import MAX_MESSAGES

ItemStatus = Literal["in_progress", "completed", "incomplete"]
TEXT_PARTS = ("input_text", "output_text", "refusal")


class TextPart(RequestModel):
    """A text part of a message; parts of earlier answers have annotations and logprobs, which mean nothing here."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class RefusalPart(RequestModel):
    """A refusal in a message of the assistant."""

    type: Literal["refusal"]
    refusal: str


ContentPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]


def _require_text(parts: Any) -> None:
    """Raises ValueError for parts other than text."""
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in TEXT_PARTS:
            raise ValueError(
                f"{index}.type: {kind!r} is not supported; this model reads parts of type {', '.join(TEXT_PARTS)}"
            )


class Item(RequestModel):
    """Common fields of items; `id` and `status` come from an earlier answer."""

    # The part with texts, which are checked before pydantic reports a longer error for the union of string and list.
    texts: ClassVar[str | None] = None

    id: str | None = None
    status: ItemStatus | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_parts_only(cls, item: Any) -> Any:
        if cls.texts is not None and isinstance(item, dict):
            try:
                _require_text(item.get(cls.texts))
            except ValueError as error:
                raise ValueError(f"{cls.texts}.{error}") from None
        return item


class MessageItem(Item):
    """One message; an assistant's may be an item of an earlier answer."""

    texts: ClassVar[str | None] = "content"

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | EachOf[ContentPart]
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(Item):
    """A call that an earlier answer requested; `arguments` is a JSON object in a string."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutputItem(Item):
    """The result of a call."""

    texts: ClassVar[str | None] = "output"

    type: Literal["function_call_output"]
    call_id: str
    output: str | EachOf[TextPart]


class SummaryText(RequestModel):
    """A part of a summary of reasoning."""

    type: Literal["summary_text"]
    text: str


class ReasoningText(RequestModel):
    """A part of the reasoning."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class ReasoningItem(Item):
    """The reasoning of an earlier answer; this server neither writes nor reads summaries or encrypted content."""

    type: Literal["reasoning"]
    summary: EachOf[SummaryText] | None = None
    content: EachOf[ReasoningText] | None = None
    encrypted_content: str | None = None


def _kind(item: Any) -> Any:
    """Returns the type of an item; messages need none."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return "message" if kind is None else kind


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind,
        custom_error_type="item_type",
        custom_error_message="only message, function_call, function_call_output and reasoning are supported types",
    ),
]


def _few_items(value: Any) -> Any:
    require_few("items", value, MAX_MESSAGES)
    return value


FewItems = Annotated[EachOf[InputItem], BeforeValidator(_few_items)]
ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(list[InputItem])


def new_item_id(prefix: str) -> str:
    """Returns an id for an item of an answer."""
    return f"{prefix}_{uuid.uuid4().hex}"


class OutputText(BaseModel):
    """The text of an answer's message; `logprobs` has one entry per output token of the whole answer."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[ContentLogprob] = []


class OutputMessage(BaseModel):
    """The message of an answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class OutputReasoning(BaseModel):
    """The reasoning before an answer; there is no summary of it."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    status: ItemStatus
    summary: list[Any] = []
    content: list[ReasoningText]
    encrypted_content: None = None


class OutputCall(BaseModel):
    """A call that the model requests; the client returns its result in an item with its `call_id`."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = Annotated[OutputMessage | OutputReasoning | OutputCall, Field(discriminator="type")]


def as_input(items: Sequence[OutputMessage | OutputReasoning | OutputCall]) -> list[InputItem]:
    """Returns an answer's items as items of the conversation that continues it."""
    return ITEMS.validate_python([item.model_dump(exclude_none=True) for item in items])


PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def as_stored(items: Sequence[InputItem]) -> bytes:
    """Returns the JSON of a conversation's items, each with an id and its text in parts, as OpenAI lists them."""
    return ITEMS.dump_json([_listed(item) for item in items], exclude_none=True)


def _listed(item: InputItem) -> InputItem:
    changes: dict[str, Any] = {} if item.id is not None else {"id": new_item_id(PREFIXES[item.type])}
    if isinstance(item, MessageItem) and isinstance(item.content, str):
        kind: Literal["input_text", "output_text"] = "output_text" if item.role == "assistant" else "input_text"
        changes["content"] = [TextPart(type=kind, text=item.content)]
    return item.model_copy(update=changes)


class InputItemList(BaseModel):
    """Body of GET /v1/responses/{id}/input_items: one page of items."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def page(cls, items: Sequence[dict[str, Any]], after: str | None, limit: int, *, descending: bool) -> Self:
        """Returns at most `limit` items after the one with the id `after`; raises ValueError if there is none."""
        ordered = list(reversed(items)) if descending else list(items)
        ids = [item["id"] for item in ordered]
        begin = 0 if after is None else ids.index(after) + 1
        page = ordered[begin : begin + limit]
        return cls(
            data=page,
            first_id=page[0]["id"] if page else None,
            last_id=page[-1]["id"] if page else None,
            has_more=begin + limit < len(ordered),
        )
