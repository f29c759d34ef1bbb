"""A conversation by lines: a line is a message to the model or, if it begins with a slash, a command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol, TextIO

# Bounds an answer, about in tokens: a small model may never end its answer.
MAX_PIECES = 512
PROCESSORS, ARGS = "logits_processors", "logits_processors_args"


class Settings:
    """Fields of a request's body; every method raises ValueError naming the wrong field or value."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        # In execution order.
        self._used: dict[str, dict[str, Any]] = {}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields to send; the server applies its defaults to the others."""
        used = [{"name": name, "params": params} for name, params in self._used.items()]
        return {**self._fields, **({PROCESSORS: used} if used else {})}

    def set(self, field: str, value: str) -> None:
        """Sets a field to a value in JSON; a value that is not JSON is a string."""
        if field in ("messages", "stream", "n", PROCESSORS):
            hint = "; switch logits processors with /use" if field == PROCESSORS else ""
            raise ValueError(f"{field}: cannot be set in a chat{hint}")
        self._fields[field] = _object(field, value) if field == ARGS else _value(value)

    def unset(self, field: str) -> None:
        """Removes a field, so that the server applies its default."""
        if field not in self._fields:
            raise ValueError(f"{field}: is not set; set are {', '.join(self._fields) or 'none'}")
        del self._fields[field]

    def use(self, name: str, params: str) -> None:
        """Selects a declared logits processor, after those already selected, with a JSON object of parameters."""
        self._used[name] = _object(name, params or "{}")

    def unuse(self, name: str) -> None:
        """Removes a selected logits processor."""
        if name not in self._used:
            raise ValueError(f"{name}: is not in use; in use are {', '.join(self._used) or 'none'}")
        del self._used[name]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name}: no valid JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError(f'{name}: must be a JSON object like {{"logit_bias": {{"42": 5}}}}, not {text}')
    return dict(value)


Message = Mapping[str, str]


class BackendError(Exception):
    """A failure to answer; the message states the reason."""


class Backend(Protocol):
    """Answers conversations."""

    def answer(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> Iterator[str]:
        """Yields pieces of the answer as they arrive; closing the iterator aborts the request. Raises BackendError.

        settings: fields of a request's body, except its messages.
        """
        ...


HELP = """/set FIELD VALUE                  set a sampling field: /set temperature 0.2 (alone: show all settings)
/unset FIELD                      back to the default
/logits_processors_args {JSON}    arguments for all logits processors: {"logit_bias": {"42": 5}}
/use NAME {JSON}                  select a logits processor, with its parameters; several run in this order
/unuse NAME                       leave it out again
/reset                            forget the conversation; settings stay
/help                             this list
/exit                             end
A message that begins with a slash is written with two of them."""


class ChatSession:
    """Answers lines on `out`; reports an error on `err` and continues."""

    def __init__(
        self, backend: Backend, settings: Settings, system_prompt: str | None, out: TextIO, err: TextIO
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._opening = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._messages = list(self._opening)
        self._out, self._err = out, err
        self.failures = 0

    def run(self, lines: Iterable[str]) -> None:
        """Processes lines until they end or one is /exit."""
        for line in lines:
            text = line.strip()
            if text in ("/exit", "/quit"):
                return
            if text.startswith("/") and not text.startswith("//"):
                self._command(text)
            elif text:
                self._say(text.removeprefix("/") if text.startswith("//") else text)

    def _say(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text})
        answer = ""
        try:
            pieces = self._backend.answer(self._messages, self._settings.fields)
            with closing(pieces):  # type: ignore[type-var]
                for count, piece in enumerate(pieces, start=1):
                    answer += piece
                    self._show(piece)
                    if count == MAX_PIECES and "max_tokens" not in self._settings.fields:
                        self._show(f" (stopped after {MAX_PIECES} tokens; /set max_tokens 2000 allows more)")
                        break
        except BackendError as error:
            # Removes the failed message, so that the user can send it again.
            self._messages.pop()
            self._complain(str(error))
            return
        except KeyboardInterrupt:
            self._show(" (stopped)")
        self._show("\n")
        self._messages.append({"role": "assistant", "content": answer})

    def _command(self, text: str) -> None:
        name, *rest = text.split(maxsplit=1)
        argument = rest[0] if rest else ""
        commands: dict[str, Callable[[str], None]] = {
            "/set": self._set,
            "/unset": self._settings.unset,
            "/logits_processors_args": lambda value: self._settings.set("logits_processors_args", value),
            "/use": lambda given: self._settings.use(*_split(given, "/use NAME {JSON}")),
            "/unuse": self._settings.unuse,
            "/reset": self._reset,
            "/help": lambda _: self._show(f"{HELP}\n"),
        }
        if name not in commands:
            self._complain(f"{name}: is no command; commands are {', '.join(commands)}, /exit")
            return
        try:
            commands[name](argument)
        except ValueError as error:
            self._complain(str(error))

    def _set(self, argument: str) -> None:
        if not argument:
            self._show(f"{json.dumps(self._settings.fields, ensure_ascii=False)}\n")
            return
        field, value = _split(argument, "/set FIELD VALUE")
        if not value:
            raise ValueError(f"{field}: /set FIELD VALUE needs a value")
        self._settings.set(field, value)

    def _reset(self, _: str) -> None:
        self._messages = list(self._opening)

    def _show(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _complain(self, text: str) -> None:
        self.failures += 1
        self._err.write(f"error: {text}\n")
        self._err.flush()


def _split(argument: str, usage: str) -> tuple[str, str]:
    first, _, rest = argument.partition(" ")
    if not first:
        raise ValueError(f"write {usage}")
    return first, rest.strip()


def parse_assignments(given: Iterable[str], flag: str, setter: Callable[[str, str], Any]) -> None:
    """Applies the NAME=VALUE words of a flag; raises ValueError naming the flag."""
    for word in given:
        name, _, value = word.partition("=")
        try:
            setter(name, value)
        except ValueError as error:
            raise ValueError(f"{flag}: {error}") from None
