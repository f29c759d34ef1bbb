"""Answers from a model loaded for this chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastdeploy_lp.engine.errors import EngineDeadError, RequestFailedError
from fastdeploy_lp.entrypoints.chat.backend import BackendError, Message
from fastdeploy_lp.entrypoints.llm import LLM
from fastdeploy_lp.sampling_params import RequestOutputKind, SamplingParams


class LLMBackend:
    """Answers with an `LLM`, which the caller shuts down."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def answer(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> Iterator[str]:
        """Yields pieces of the answer as they arrive."""
        fields = [name for name in SamplingParams.__struct_fields__ if name != "output_kind"]
        unknown = sorted(settings.keys() - set(fields))
        if unknown:
            raise BackendError(f"{unknown[0]}: is no sampling field; fields are {', '.join(fields)}")
        try:
            params = SamplingParams(**{**settings, "n": 1, "output_kind": RequestOutputKind.DELTA})
            for output in self._llm.chat(messages, params, stream=True):
                yield output.outputs.text
        except (ValueError, RequestFailedError, EngineDeadError) as error:
            raise BackendError(str(error)) from None
