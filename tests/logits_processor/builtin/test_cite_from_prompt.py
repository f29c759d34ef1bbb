from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.churned import DTYPES, EOS, Churn, Row, crowds

from fastdeploy_lp.logits_processor.builtin.sequence_bias import CiteFromPromptLogitsProcessor

boosts = st.integers(-8, 8).map(lambda eighths: eighths / 4)
arguments = st.fixed_dictionaries(
    {"cite_boost": st.none() | boosts},
    optional={"cite_boost_eos": st.booleans(), "cite_conditional_boost": boosts},
)


def reference(args: dict[str, Any], prompt: list[int]) -> Any:
    def row(logits: Row, output: list[int]) -> Row:
        if args["cite_boost"] is None:
            return logits
        for token in {*prompt, *([EOS] if args.get("cite_boost_eos", True) else [])}:
            logits[token] += np.float32(args["cite_boost"])
        last = [*prompt, *output][-1]
        for token in {after for before, after in itertools.pairwise(prompt) if before == last}:
            logits[token] += np.float32(args.get("cite_conditional_boost", 0.0))
        return logits

    return row


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25)
@given(crowds(arguments), st.integers(0, 2**20))
def test_rows_are_as_the_reference_makes_them(dtype: str, crowd: Any, seed: int) -> None:
    Churn(CiteFromPromptLogitsProcessor, crowd, reference, seed=seed, dtype=dtype).run()
