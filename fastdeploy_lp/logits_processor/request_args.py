"""Checks a request's `logits_processors_args` against the declared processors, in the API process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fastdeploy_lp.logits_processor.errors import RequestArgsError
from fastdeploy_lp.logits_processor.registry import DeclaredProcessor
from fastdeploy_lp.logits_processor.sendable import require_sendable

FIELD = "logits_processors_args"


class RequestArgsValidator:
    """Knows every argument that the declared processors take, from their `Params`."""

    def __init__(self, declared: Sequence[DeclaredProcessor], vocab_size: int) -> None:
        self._names = [processor.name for processor in declared]
        self._models: list[type[BaseModel]] = [p.cls.Params for p in declared if p.cls.Params is not None]
        self._known = {name for model in self._models for name in _argument_names(model)}
        # A processor without Params may read any argument, so none can be called unknown.
        self._open = any(processor.cls.Params is None for processor in declared)
        self._context = {"vocab_size": vocab_size}

    def validate(self, args: dict[str, Any] | None) -> dict[str, Any]:
        """The arguments with their types settled, `{}` for none; raises RequestArgsError."""
        if not args:
            return {}
        settled: dict[str, Any] = {}
        for name, value in args.items():
            if not isinstance(name, str):
                raise RequestArgsError(f"{FIELD}.{name}", "argument names are strings")
            if name not in self._known and not self._open:
                raise RequestArgsError(f"{FIELD}.{name}", self._unknown())
            require_sendable(value, f"{FIELD}.{name}")
            settled[name] = value
        for model in self._models:
            settled |= self._validate_model(model, args)
        return settled

    def _validate_model(self, model: type[BaseModel], args: dict[str, Any]) -> dict[str, Any]:
        own = {name: args[name] for name in _argument_names(model) if name in args}
        if not own:
            return {}
        try:
            checked = model.model_validate(own, context=self._context)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(str(part) for part in (FIELD, *first["loc"]) if part != "[key]")
            raise RequestArgsError(path, first["msg"].removeprefix("Value error, ")) from None
        settled = checked.model_dump(by_alias=True)
        return {name: settled[name] for name in own}

    def _unknown(self) -> str:
        if not self._names:
            return "no logits processors are declared; start the server with --logits-processors"
        known = ", ".join(sorted(self._known)) or "none"
        return f"no declared logits processor ({', '.join(self._names)}) takes this argument; known arguments: {known}"


def _argument_names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
