from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from support.builtins import EOS, check_builtin, without

from fastdeploy_lp.logits_processor.builtin.bans import MinTokensLogitsProcessor
from fastdeploy_lp.sampling_params import SamplingParams
from fastdeploy_lp.worker.sequence import Sequence


def reference(row: np.ndarray, request: Sequence) -> np.ndarray:
    if len(request.output_token_ids) >= request.selection.flat["min_tokens"]:
        return row
    return without(row, sorted({*EOS, *(request.params.stop_token_ids or ())}))


def test_no_row_ends_before_its_request_wants_it_to() -> None:
    check_builtin(MinTokensLogitsProcessor, reference, st.fixed_dictionaries({"min_tokens": st.integers(0, 8)}))


def test_more_tokens_than_there_may_be_are_refused() -> None:
    def asking(minimum: int) -> SamplingParams:
        return SamplingParams(max_tokens=4, extra_args={"min_tokens": minimum})

    MinTokensLogitsProcessor.validate_params(asking(4))
    with pytest.raises(ValueError, match="at most max_tokens, which is 4"):
        MinTokensLogitsProcessor.validate_params(asking(5))
