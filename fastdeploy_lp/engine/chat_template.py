"""Renders conversations with a sandboxed jinja template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.request_limits import MAX_TEMPLATE_CHARACTERS, MAX_TEMPLATE_STEPS


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Converts OpenAI messages to the form that chat templates expect; raises InvalidRequestError naming the field.

    Text parts are joined, the role `developer` becomes `system`, the arguments of tool calls become objects instead of
    JSON text, and a message with only tool calls gets empty content.
    """
    return [_message(message, f"messages.{index}") for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    shown = {**message, "role": "system" if role == "developer" else role, "content": _joined(content)}
    if isinstance(calls, Sequence) and calls:
        shown["tool_calls"] = [_tool_call(call, f"{path}.tool_calls.{index}") for index, call in enumerate(calls)]
        shown["content"] = shown["content"] or ""
    return shown


def _joined(content: Any) -> Any:
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "".join(part["text"] for part in content)
    return content


def _tool_call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise InvalidRequestError(path, "must be an object with the called function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _parsed(arguments, f"{path}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed(arguments: str, path: str) -> dict[str, Any]:
    try:
        # Some clients send an empty string for a call without arguments.
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(path, f"must be a JSON object in a string: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidRequestError(path, "must be a JSON object in a string")
    return parsed


STEPS = "__steps"
MAX_INTEGER_BITS = 65_536
# Template variables set by the server.
RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message")


@dataclass(frozen=True)
class ChatOptions:
    """Options for rendering a conversation as a prompt.

    tools: function tools in OpenAI's shape, for templates that show them to the model.
    chat_template: a jinja template to use instead of the model's; render a template sent by a client in a
        `TemplateSandbox`.
    chat_template_kwargs: further template variables.
    continue_final_message: end the prompt within the last message, so that the model continues it.
    add_generation_prompt: end the prompt with the beginning of an assistant message; None means True unless the last
    message is continued. Setting both is refused.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @property
    def begins_answer(self) -> bool:
        """`add_generation_prompt` with None resolved."""
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt


class ChatTemplate:
    """A compiled chat template; raises jinja2.TemplateSyntaxError if it does not compile."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._template: Template = _new_environment().from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions | None = None) -> str:
        """Returns the prompt; raises InvalidRequestError naming the field that the template refuses."""
        options = options or ChatOptions()
        _check(options, messages)
        text = self._render(messages, options, options.tools)
        if options.tools and text == self._render(messages, options, None):
            raise InvalidRequestError("tools", "the chat template of this model does not show tools to it")
        return self._cut_after_final_message(text, messages) if options.continue_final_message else text

    def _render(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions, tools: Sequence[Mapping[str, Any]] | None
    ) -> str:
        variables = {
            **self._special_tokens,
            **options.chat_template_kwargs,
            "messages": messages,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": options.begins_answer,
            "continue_final_message": options.continue_final_message,
            STEPS: _Steps(),
        }
        try:
            return "".join(_bounded_pieces(self._template.generate(variables)))
        except Exception as error:  # noqa: BLE001 - a template computes, so anything can go wrong in it
            param = "messages" if options.chat_template is None else "chat_template"
            raise InvalidRequestError(param, f"the chat template refuses them: {_reason(error)}") from None

    def _cut_after_final_message(self, text: str, messages: Sequence[Mapping[str, Any]]) -> str:
        """Cuts what the template writes after the last message's content."""
        content = messages[-1].get("content")
        whole = content if isinstance(content, str) else ""
        # Templates may strip the content.
        for shown in (whole, whole.rstrip(), whole.strip()):
            at = text.rfind(shown) if shown else -1
            if at >= 0:
                return text[: at + len(shown)]
        raise InvalidRequestError(
            "continue_final_message", "the chat template does not show the last message's content as it is"
        )


def compiled(source: str, special_tokens: Mapping[str, str], param: str) -> ChatTemplate:
    """Compiles an external template; raises InvalidRequestError naming `param` if that fails."""
    try:
        return ChatTemplate(source, special_tokens)
    except (TemplateSyntaxError, RecursionError, UnicodeError, MemoryError) as error:
        raise InvalidRequestError(param, f"the template does not compile: {_reason(error)}") from None


def _check(options: ChatOptions, messages: Sequence[Mapping[str, Any]]) -> None:
    for name in options.chat_template_kwargs:
        if name in RESERVED or name == STEPS:
            raise InvalidRequestError(f"chat_template_kwargs.{name}", "this variable of the template is set elsewhere")
    if not options.continue_final_message:
        return
    if options.begins_answer:
        reason = "only allowed together with add_generation_prompt: false"
        raise InvalidRequestError("continue_final_message", reason)
    if not messages or not messages[-1].get("content"):
        raise InvalidRequestError("continue_final_message", "the last message has no text to continue")


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that refuses access to Python internals, changes of its inputs, and unbounded work."""

    # These call `call_binop`. Without the entry, Jinja computes constant ones, unbounded, while it compiles a template.
    intercepted_binops = frozenset({"*", "**"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "__counted", [], [], None, None)
        return tree

    def call(self, context: Context, callable_: Any, *args: Any, **kwargs: Any) -> Any:
        """Counts every call, including macro calls, as a step: a macro may call itself twice."""
        context[STEPS].take()
        return super().call(context, callable_, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Products and powers, whose results may be larger than any memory."""
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_INTEGER_BITS:
                raise TemplateError(f"a number of more than {MAX_INTEGER_BITS} bits")
        elif operator == "*":
            count, part = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(count, int) and isinstance(part, Sized) and len(part) * count > MAX_TEMPLATE_CHARACTERS:
                raise TemplateError(f"more than {MAX_TEMPLATE_CHARACTERS} characters")
        return super().call_binop(context, operator, left, right)


class _Steps:
    """The remaining step budget of one rendering."""

    def __init__(self) -> None:
        self._left = MAX_TEMPLATE_STEPS

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TemplateError(f"more than {MAX_TEMPLATE_STEPS} loop iterations and calls")


@pass_context
def _counted(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    steps = context[STEPS]
    for value in values:
        steps.take()
        yield value


def _bounded_pieces(pieces: Iterable[str]) -> Iterator[str]:
    room = MAX_TEMPLATE_CHARACTERS
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            raise TemplateError(f"more than {MAX_TEMPLATE_CHARACTERS} characters")
        yield piece


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    return " ".join(str(error).split()) or type(error).__name__


def _to_json(value: Any, indent: int | None = None) -> str:
    # Unlike jinja2's filter, this one does not escape for HTML: the result is a prompt.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _new_environment() -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters |= {"tojson": _to_json, "__counted": _counted}
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment
