"""Log probabilities of a prompt, stored as the arrays from the worker."""

from __future__ import annotations

import numpy as np

from fastdeploy_lp.engine.logprobs import SpelledPositions, spelled_out
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.messages import PackedLogprobs, TokenLogprobs
from fastdeploy_lp.outputs import Logprob


class PromptLogprobs(SpelledPositions[dict[int, Logprob] | None]):
    """Log probabilities by token id at each position of the prompt, None at the first."""

    def __init__(self, packed: PackedLogprobs, tokenizer: Tokenizer) -> None:
        self._token_ids = np.frombuffer(packed.token_ids, "<i4").reshape(-1, packed.width)
        self._logprobs = np.frombuffer(packed.logprobs, "<f4").reshape(-1, packed.width)
        self._ranks = np.frombuffer(packed.ranks, "<i4")
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return 1 + len(self._ranks)

    def read(self, place: int) -> dict[int, Logprob] | None:
        """See `SpelledPositions.read`."""
        if not place:
            return None
        row = place - 1
        tokens, logprobs = self._token_ids[row].tolist(), self._logprobs[row].tolist()
        return spelled_out(TokenLogprobs(tokens, logprobs, int(self._ranks[row])), self._tokenizer)
