"""Who computes a model, as far as PaddleFormers is not needed for it; tests/formers has the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from safetensors.numpy import save_file

from fastdeploy_lp.config import option_values
from fastdeploy_lp.config.model_config import MODEL_IMPLS
from fastdeploy_lp.model_executor.forward_batch import ForwardBatchBuilder, SequenceChunk
from fastdeploy_lp.model_executor.kv_cache import LayerKVCache
from fastdeploy_lp.model_executor.layers.attention.paged_attention import HeadSizes, PagedAttention
from fastdeploy_lp.model_executor.loader.weights import WeightsError, open_weights
from fastdeploy_lp.model_executor.models import registry
from fastdeploy_lp.model_executor.models.llama import LlamaForCausalLM
from fastdeploy_lp.model_executor.models.registry import model_class
from fastdeploy_lp.startup.cache_size import kv_bytes_per_token
from fastdeploy_lp.startup.engine_args import EngineArgs

LLAMA, OTHER = {"architectures": ["LlamaForCausalLM"]}, {"architectures": ["Qwen3MoeForCausalLM"]}
INSTALL = r"run `pip install 'fastdeploy-lp\[paddleformers\]'`"


@pytest.fixture(params=[True, False])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With and without the package; nothing here imports it."""
    for module in (registry, option_values):
        monkeypatch.setattr(module, "has_paddleformers", lambda: request.param)
    return bool(request.param)


# The choice


@pytest.mark.parametrize("impl", ["auto", "native"])
def test_families_of_our_own_are_computed_natively(impl: str, installed: bool) -> None:
    assert model_class(LLAMA, impl) is LlamaForCausalLM


def test_auto_takes_paddleformers_for_others_if_it_is_there(installed: bool) -> None:
    if installed:
        assert model_class(OTHER).__name__ == "PaddleFormersForCausalLM"
    else:
        with pytest.raises(ValueError, match=rf"are not supported; .*; PaddleFormers has others: {INSTALL}$"):
            model_class(OTHER)


def test_native_never_takes_paddleformers(installed: bool) -> None:
    with pytest.raises(ValueError, match=r"are not supported; supported are LlamaForCausalLM, .*Phi3ForCausalLM$"):
        model_class(OTHER, "native")


@pytest.mark.parametrize("config", [LLAMA, OTHER])
def test_paddleformers_takes_every_family(config: dict[str, list[str]], installed: bool) -> None:
    assert model_class(config, "paddleformers").__name__ == "PaddleFormersForCausalLM"


# The option


def test_the_option_is_checked_before_a_model_is_opened(installed: bool) -> None:
    for impl in MODEL_IMPLS[:2]:
        assert EngineArgs("nowhere", model_impl=impl).model_impl == impl
    if installed:
        assert EngineArgs("nowhere", model_impl="paddleformers").model_impl == "paddleformers"
    else:
        with pytest.raises(ValueError, match=f"^model_impl: needs PaddleFormers; {INSTALL}$"):
            EngineArgs("nowhere", model_impl="paddleformers")


@pytest.mark.parametrize("given", ["", "paddle", "Auto", None, 3])
def test_other_values_are_refused_with_the_allowed_ones(given: object) -> None:
    with pytest.raises(ValueError, match=r"^model_impl: .* is none of auto, native, paddleformers$"):
        EngineArgs("nowhere", model_impl=given)


# Attention of families that are not ours


def attended(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, window: int | None, sinks: np.ndarray | None
) -> np.ndarray:
    """Attention of one sequence, a query at a time: [tokens, heads, size] in, [tokens, heads * value size] out."""
    heads, shared = queries.shape[1], queries.shape[1] // keys.shape[1]
    rows = []
    for at, query in enumerate(queries):
        first = 0 if window is None else max(0, at + 1 - window)
        outs = []
        for head in range(heads):
            scores = keys[first : at + 1, head // shared] @ query[head] * 0.3
            powers = np.exp(scores)
            sink = 0.0 if sinks is None else np.exp(sinks[head])
            outs.append(powers / (powers.sum() + sink) @ values[first : at + 1, head // shared])
        rows.append(np.concatenate(outs))
    return np.stack(rows)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_windows_sinks_and_values_of_another_size(window: int | None, with_sinks: bool) -> None:
    """Two sequences in chunks of one and several tokens, in blocks of 4."""
    random = np.random.default_rng(5)
    sizes = HeadSizes(num_heads=4, num_kv_heads=2, key_dim=6, value_dim=5)
    cache = LayerKVCache(2, 4, 6, value_dim=5)
    cache.allocate(8)
    attention = PagedAttention(sizes, 0.3, cache, window)
    builder = ForwardBatchBuilder(4, 2, 4, [] if window is None else [window])
    sinks = random.normal(size=4).astype(np.float32) if with_sinks else None
    sequences = [
        [random.normal(size=(11, heads, size)).astype(np.float32) for heads, size in ((4, 6), (2, 6), (2, 5))]
        for _ in range(2)
    ]
    expected = [attended(*each, window, sinks) for each in sequences]
    tables = [np.array([1, 2, 3]), np.array([6, 4, 5])]
    for start, end in ((0, 5), (5, 6), (6, 11)):
        batch = builder.build(
            [SequenceChunk(np.arange(start, end), start, table, num_outputs=end - start) for table in tables]
        )
        parts = (paddle.to_tensor(np.concatenate([each[i][start:end] for each in sequences])) for i in range(3))
        queries, keys, values = parts
        out = attention(queries, keys, values, batch, None if sinks is None else paddle.to_tensor(sinks)).numpy()
        np.testing.assert_allclose(out, np.concatenate([each[start:end] for each in expected]), rtol=0, atol=1e-5)


def test_latent_attention_takes_the_memory_of_its_expanded_keys_and_values() -> None:
    config = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64, "num_hidden_layers": 3}
    latent = {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
    assert kv_bytes_per_token(config, "float32") == 3 * 2 * (8 + 8) * 4
    assert kv_bytes_per_token(config | latent, "float32") == 3 * 8 * (24 + 12) * 4


# Weights


def test_a_tensor_that_is_left_out_on_purpose_is_not_unknown(tmp_path: Path) -> None:
    save_file({"one": np.ones((2, 3), np.float32), "two": np.ones(4, np.float32)}, tmp_path / "model.safetensors")
    with open_weights([tmp_path / "model.safetensors"]) as weights:
        assert weights.shapes() == {"one": (2, 3), "two": (4,)}
        assert weights.take("one", (2, 3)).tolist() == weights.take("one", (2, 3)).tolist()
        with pytest.raises(WeightsError, match="tensor two is unknown to the model"):
            weights.require_all_taken()
        weights.skip("two")
        weights.require_all_taken()
