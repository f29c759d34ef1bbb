"""The engine under vLLM's names, for programs written for vLLM: `--vllm-compat` is on, and `outputs` is a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, fields
from typing import Any

from typing_extensions import Self

from fastdeploy_lp.entrypoints import async_llm, llm
from fastdeploy_lp.logits_processor.vllm_compat.requests import default_params
from fastdeploy_lp.request import outputs
from fastdeploy_lp.startup.engine_args import EngineArgs as OwnEngineArgs


class RequestOutput(outputs.RequestOutput):
    """The answer to one prompt; `outputs` is the list of completions, not the first one as in this server's class."""

    __slots__ = ()

    @classmethod
    def of(cls, output: outputs.RequestOutput) -> Self:
        """Returns the same answer under vLLM's names."""
        return cls(**{each.name: getattr(output, each.name) for each in fields(output)})

    @property
    def outputs(self) -> list[outputs.CompletionOutput]:  # type: ignore[override]
        """All completions."""
        return self.completions


@dataclass
class EngineArgs(OwnEngineArgs):
    """This server's options, with stand-ins for vLLM's modules enabled."""

    vllm_compat: bool = True


class AsyncEngineArgs(EngineArgs):
    """The same options, for `AsyncLLM`."""


class LLM(llm.LLM):
    """Offline inference; an unknown option raises ValueError that names the known ones."""

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **({"vllm_compat": True} | options))

    def generate(self, prompts: Any, sampling_params: Any = None, **options: Any) -> Any:
        """Generates as this server's `LLM.generate` does, with vLLM's default parameters."""
        return _as_vllms(super().generate(prompts, sampling_params or default_params(), **options))

    def chat(self, messages: Any, sampling_params: Any = None, **options: Any) -> Any:
        """Answers as this server's `LLM.chat` does, with vLLM's default parameters."""
        return _as_vllms(super().chat(messages, sampling_params or default_params(), **options))


class AsyncLLM(async_llm.AsyncLLM):
    """Concurrent requests on an event loop."""

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **({"vllm_compat": True} | options))

    async def generate(
        self, prompt: Any, sampling_params: Any = None, request_id: str | None = None, **options: Any
    ) -> AsyncIterator[outputs.RequestOutput]:
        """Generates as this server's `AsyncLLM.generate` does, with vLLM's default parameters."""
        answer = super().generate(prompt, sampling_params or default_params(), request_id, **options)
        async with aclosing(answer) as grown:  # type: ignore[type-var]
            async for output in grown:
                yield RequestOutput.of(output)


def _as_vllms(answers: Any) -> Any:
    if isinstance(answers, list):
        return [RequestOutput.of(output) for output in answers]
    return (RequestOutput.of(output) for output in answers)
