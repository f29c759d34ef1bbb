"""Rotary embedding of PaddleFormers' models as `config.json` describes it."""

from __future__ import annotations

import copy
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"


def with_older_names(hf_config: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration with `rope_theta` and `rope_scaling` beside `rope_parameters`.

    PaddleFormers reads either form, depending on the family; of `rope_parameters` for each kind of layer, neither.
    """
    rope = _rope_of(hf_config, FULL)
    if rope is None:
        return dict(hf_config)
    scaling = None if rope.get("rope_type", "default") == "default" else dict(rope)
    return {**hf_config, "rope_parameters": dict(rope), "rope_theta": rope.get("rope_theta"), "rope_scaling": scaling}


def rotate_windows_apart(model: Any, hf_config: dict[str, Any]) -> None:
    """Gives layers with a sliding window a separate rotary embedding, if `config.json` does.

    PaddleFormers rotates all layers alike.
    """
    rope = _rope_of_windows(hf_config)
    if rope is None or rope == _rope_of(hf_config, FULL):
        return
    body = getattr(model, model.base_model_prefix)
    config = copy.copy(model.config)
    config.rope_parameters = dict(rope)
    rotary = type(body.rotary_emb)(config)

    def rotate(
        _layer: Any, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        named["position_embeddings"] = rotary(arguments[0], named["position_ids"])
        return arguments, named

    for layer, kind in zip(body.layers, model.config.layer_types, strict=True):
        if kind == SLIDING:
            layer.register_forward_pre_hook(rotate, with_kwargs=True)


def _rope_of(hf_config: dict[str, Any], kind: str) -> dict[str, Any] | None:
    rope = hf_config.get("rope_parameters")
    if not isinstance(rope, dict):
        return None
    found = rope.get(kind, rope)
    return found if isinstance(found, dict) else None


def _rope_of_windows(hf_config: dict[str, Any]) -> dict[str, Any] | None:
    rope = hf_config.get("rope_parameters")
    if isinstance(rope, dict):
        return _rope_of(hf_config, SLIDING) if SLIDING in rope else None
    base = hf_config.get("rope_local_base_freq")
    return None if base is None else {"rope_type": "default", "rope_theta": base}
