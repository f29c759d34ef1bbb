"""Slot arrays as in the worker, filled by hand instead of by an engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fastdeploy_lp.logits_processor.selection import Selection
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.sampling_params import SamplingParams


@dataclass
class Occupant:
    """A request in a slot; `output` is the list that grows by a token a step."""

    slot: int
    request_id: str
    prompt: list[int]
    output: list[int]
    selection: Selection = field(default_factory=Selection)
    params: SamplingParams = field(default_factory=SamplingParams)

    @property
    def prompt_token_ids(self) -> list[int]:
        """`prompt`, under the name that sequences have for it."""
        return self.prompt

    @property
    def output_token_ids(self) -> list[int]:
        """`output`, under the name that sequences have for it."""
        return self.output


class Slots(ShareInputs):
    """`share_inputs` of requests that get one token at a time."""

    def append_token(self, slot: int, token: int) -> None:
        """Records a sampled token, in the live output list as well."""
        self.append_tokens(np.array([slot]), np.array([token]))
        list.append(self["output_token_ids"][slot], token)
