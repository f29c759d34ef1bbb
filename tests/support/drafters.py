"""Drafters for tests."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.worker.drafters.drafter import Draft, Drafter
from fastdeploy_lp.worker.sequence import Sequence


class KnowsMost(Drafter):
    """Drafts a request's known output, of which some tokens are replaced; goes on at random after its end."""

    kinds: ClassVar[dict[str, float]] = {"known": 0.7}
    outputs: ClassVar[Mapping[str, list[int]]] = {}
    wrong: ClassVar[float] = 0.2

    def __init__(self, fd_config: FDConfig) -> None:
        self._vocab_size = fd_config.model_config.vocab_size

    def draft(self, sequence: Sequence, count: int) -> Draft | None:
        place = len(sequence.output_token_ids)
        rng = random.Random(f"{sequence.request_id} {place}")
        known = self.outputs.get(sequence.request_id, [])[place : place + rng.randint(0, count)]
        tokens = [token if rng.random() >= self.wrong else rng.randrange(self._vocab_size) for token in known]
        tokens += [rng.randrange(self._vocab_size) for _ in range(rng.randint(0, 2))]
        return Draft(tokens[:count], "known") if tokens[:count] else None
