"""A trial of a loaded model, before it is served: what its attention needs, and that it can be served in batches."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import Tensor

from fastdeploy_lp.checkpoint.errors import CheckpointError
from fastdeploy_lp.model_executor.models.paddleformers.attention import LayerAttention, MeasuringAttention, row_indices

# Some of its models drop an axis of one token.
LEAST_TOKENS = 2
_TOKENS = 5
_TOLERANCE = 1e-3


def inputs(token_ids: Tensor, positions: Tensor) -> dict[str, Any]:
    """Returns the arguments of a pass over tokens [tokens] of any sequences, of at least `LEAST_TOKENS` tokens."""
    if len(token_ids) < LEAST_TOKENS:
        token_ids, positions = (paddle.tile(each, [LEAST_TOKENS]) for each in (token_ids, positions))
    return {
        "input_ids": token_ids.unsqueeze(0),
        "position_ids": positions.unsqueeze(0),
        "attn_mask_startend_row_indices": row_indices(),
        "use_cache": False,
        "return_dict": True,
    }


def measure(model: Any, body: Any, head: Any, attention: MeasuringAttention) -> list[LayerAttention]:
    """Returns what each layer asks of attention, which `attention` records.

    Raises CheckpointError for a model that fails, and unless its logits are `head` of `body`, each token's alone.
    """
    name = type(model).__name__
    tokens = paddle.arange(_TOKENS)
    try:
        hidden = body(**inputs(tokens, tokens))[0][0]
        layers = list(attention.layers)
        logits = model(**inputs(tokens, tokens)).logits[0]
        alone = [body(**inputs(tokens[i : i + 1], tokens[i : i + 1]))[0][0, 0] for i in range(_TOKENS)]
    except Exception as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"config.json: PaddleFormers cannot compute {name} on this machine: {reason}") from error
    if not _close(head(hidden.unsqueeze(0))[0], logits):
        raise CheckpointError(f"config.json: {name} is not supported; its logits are not its head's alone")
    if not _close(paddle.stack(alone), hidden):
        raise CheckpointError(f"config.json: {name} is not supported; PaddleFormers mixes the tokens of a batch")
    return layers


def _close(actual: Tensor, expected: Tensor) -> bool:
    return bool(paddle.allclose(actual, expected, rtol=_TOLERANCE, atol=_TOLERANCE))
