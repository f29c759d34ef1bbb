"""IO processors for tests: one that does its work, and one that fails where its data says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from fastdeploy_lp import IOProcessor, PoolingParams
from fastdeploy_lp.request.outputs import PoolingRequestOutput

NAME = "lengths"


class Texts(BaseModel):
    """Texts, or token ids as `ids`; `fail` is the method that is to raise an error of this kind."""

    texts: list[Any] = Field(min_length=1, max_length=8)
    fail: str = ""
    error: str = "RuntimeError"


ERRORS: dict[str, BaseException] = {
    "RuntimeError": RuntimeError("secret"),
    "ValueError": ValueError("of the data"),
    "SystemExit": SystemExit(7),
    "StopIteration": StopIteration(),
}


class Lengths(IOProcessor[Texts, "list[Any]"]):
    """Answers with the shape and the sum of each prompt's numbers."""

    def parse_request(self, data: Any) -> Texts:
        """Raises as `fail` says, and pydantic's error."""
        if data == "unreadable":
            raise ValueError("this cannot be read")
        texts = Texts.model_validate(data)
        self._fail(texts, "parse_request")
        return texts

    def validate_or_generate_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """Refuses a dimension of 5 and returns nothing for one of 6."""
        if params is not None and params.dimensions == 5:
            raise ValueError("dimensions: 5 is not liked")
        return None if params is not None and params.dimensions == 6 else super().validate_or_generate_params(params)  # type: ignore[return-value]

    def pre_process(self, prompt: Texts, request_id: str | None = None) -> Any:
        """What the data holds, as it is."""
        self._fail(prompt, "pre_process")
        if prompt.fail == "no prompt":
            return []
        return prompt.texts[0] if prompt.fail == "single" else prompt.texts

    def post_process(self, model_output: Sequence[PoolingRequestOutput], request_id: str | None = None) -> list[Any]:
        """One entry a prompt."""
        if len(model_output) == 2:
            raise ERRORS["RuntimeError"]
        return [[*each.outputs.data.shape, float(np.sum(each.outputs.data))] for each in model_output]

    def output_to_response(self, output: list[Any]) -> Any:
        """Of four prompts, something that is no JSON."""
        return {"shapes": output} if len(output) != 4 else {"shapes": {1}}

    def _fail(self, prompt: Texts, method: str) -> None:
        if prompt.fail == method:
            raise ERRORS[prompt.error]


class Hasty(Lengths):
    """Answers with the place of the first output that comes, and never asks for the others."""

    async def post_process_async(
        self, model_output: AsyncIterator[tuple[int, PoolingRequestOutput]], request_id: str | None = None
    ) -> list[Any]:
        """Leaves the others behind."""
        async for place, _ in model_output:
            return [place]
        return []


def lengths() -> str:
    """What a plugin's function gives."""
    return "support.io_processors:Lengths"
