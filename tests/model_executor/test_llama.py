from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from support.sequences import request, run_to_end, tiny_engine
from support.tiny import GOLDEN, tiny_fd_config

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.model_executor.loader.weights import WeightsError, open_weights
from fastdeploy_lp.model_executor.models.registry import MODELS, CausalLM, model_class
from fastdeploy_lp.model_executor.sequence_chunk import SequenceChunk
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.model_runner import ModelRunner

MODELS_UNDER_TEST = ("tiny-llama", "tiny-llama3-rope")
MAX_MODEL_LEN = 128
BLOCK_SIZE = 16
BLOCKS_PER_SEQ = MAX_MODEL_LEN // BLOCK_SIZE
MAX_SEQS = 4
TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Case:
    """A prompt, the reference's logits at every position of it, and the reference's greedy continuation."""

    prompt: list[int]
    logits: np.ndarray
    greedy: list[int]


@cache
def cases(name: str) -> list[Case]:
    logits = np.load(GOLDEN / name / "reference_logits.npz")
    content = json.loads((GOLDEN / name / "reference.json").read_text())
    return [
        Case(case["prompt_ids"], logits[f"case{index}"], case["greedy_ids"])
        for index, case in enumerate(content["cases"])
    ]


@dataclasses.dataclass
class Run:
    """The next tokens of one sequence and where it stands."""

    tokens: list[int]
    seat: int
    start: int = 0

    @property
    def chunk(self) -> SequenceChunk:
        first = 1 + self.seat * BLOCKS_PER_SEQ
        held = -(-(self.start + len(self.tokens)) // BLOCK_SIZE)
        return SequenceChunk(np.array(self.tokens), self.start, np.arange(first, first + held))


class Model:
    """A model with a KV cache for MAX_SEQS sequences that gives the logits of every token."""

    def __init__(self, name: str) -> None:
        fd_config = tiny_fd_config(name, max_num_seqs=MAX_SEQS, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE)
        config = fd_config.model_config
        with paddle.no_grad(), open_weights([Path(config.directory) / "model.safetensors"]) as weights:
            self.model: CausalLM = model_class(config.hf_config)(fd_config, weights)
            weights.require_all_taken()
            self.model.initialize_cache(fd_config.cache_config.num_blocks)

    def logits(self, *runs: Run) -> list[np.ndarray]:
        """For every run the logits [tokens, vocab_size] of all of its tokens, computed in one pass."""
        chunks = [dataclasses.replace(run.chunk, num_outputs=len(run.tokens)) for run in runs]
        with paddle.no_grad():
            logits = self.model.compute_logits(self.model.forward(chunks)).numpy()
        return np.split(logits, np.cumsum([len(run.tokens) for run in runs])[:-1])


@cache
def model(name: str) -> Model:
    return Model(name)


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


# Right answers


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("name", MODELS_UNDER_TEST)
def test_logits_agree_with_the_reference_at_every_position(name: str, index: int) -> None:
    case = cases(name)[index]
    (logits,) = model(name).logits(Run(case.prompt, seat=0))
    assert_close(logits, case.logits)


@pytest.mark.parametrize("name", MODELS_UNDER_TEST)
def test_greedy_tokens_agree_with_the_reference(name: str) -> None:
    engine = tiny_engine(name=name, max_model_len=MAX_MODEL_LEN, max_num_seqs=3)
    requests = [
        request(str(i), case.prompt, max_tokens=len(case.greedy), ignore_eos=True) for i, case in enumerate(cases(name))
    ]
    ran = run_to_end(engine, requests)
    assert [ran[made.request_id].token_ids for made in requests] == [case.greedy for case in cases(name)]


@pytest.mark.parametrize("name", MODELS_UNDER_TEST)
def test_a_pass_gives_the_hidden_state_of_the_last_token_unless_asked_for_more(name: str) -> None:
    one = model(name)
    runs = [Run(cases(name)[index].prompt, seat=index) for index in (2, 0, 1)]
    logits = one.model.compute_logits(one.model.forward([run.chunk for run in runs])).numpy()
    assert_close(logits, np.stack([cases(name)[index].logits[-1] for index in (2, 0, 1)]))


@pytest.mark.parametrize("name", MODELS_UNDER_TEST)
@pytest.mark.parametrize("size", [1, 2, 7, 15, 16, 17, 32, 99])
def test_a_prompt_in_chunks_gives_the_same_logits(name: str, size: int) -> None:
    case = cases(name)[3]
    parts = [
        model(name).logits(Run(case.prompt[start : start + size], seat=1, start=start))[0]
        for start in range(0, len(case.prompt), size)
    ]
    assert_close(np.concatenate(parts), case.logits)


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_sequences_of_mixed_lengths_cut_anywhere_share_a_batch(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(MODELS_UNDER_TEST))
    order = data.draw(st.permutations(range(len(cases(name)))))
    seats = data.draw(st.permutations(range(MAX_SEQS)))
    done: dict[int, list[np.ndarray]] = {index: [] for index in order}
    starts = dict.fromkeys(order, 0)
    while open_cases := [index for index in order if starts[index] < len(cases(name)[index].prompt)]:
        runs = []
        for index in open_cases:
            rest = cases(name)[index].prompt[starts[index] :]
            size = min(data.draw(st.sampled_from([1, 1, 7, 30, 100])), len(rest))
            runs.append(Run(rest[:size], seats[index], starts[index]))
            starts[index] += size
        for index, logits in zip(open_cases, model(name).logits(*runs), strict=True):
            done[index].append(logits)
    for index in order:
        assert_close(np.concatenate(done[index]), cases(name)[index].logits)


def test_what_a_seat_held_before_does_not_show() -> None:
    one, (_, _, shorter, longer) = model("tiny-llama"), cases("tiny-llama")
    one.logits(Run(longer.prompt, seat=2))
    assert_close(one.logits(Run(shorter.prompt, seat=2))[0], shorter.logits)


def test_logits_may_be_overwritten_without_harm_to_the_next_pass() -> None:
    one, case = model("tiny-llama"), cases("tiny-llama")[1]
    with paddle.no_grad():
        logits = one.model.compute_logits(one.model.forward([Run(case.prompt, seat=0).chunk]))
        logits.fill_(1e9)
    assert_close(one.logits(Run(case.prompt, seat=0))[0], case.logits)


# Checkpoints

Tensors = dict[str, np.ndarray]


def checkpoint(
    tmp_path: Path, name: str, change: Callable[[Tensors], object] = lambda _: None, **config: Any
) -> FDConfig:
    """A copy of a tiny model whose tensors went through `change`, with these entries of config.json."""
    tensors = load_file(GOLDEN / name / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    fd_config = tiny_fd_config(name, max_num_seqs=1)
    hf_config = {**fd_config.model_config.hf_config, **config}
    (tmp_path / "config.json").write_text(json.dumps(hf_config))
    model_config = dataclasses.replace(fd_config.model_config, directory=str(tmp_path), hf_config=hf_config)
    return dataclasses.replace(fd_config, model_config=model_config)


ASKED = 2


def answer(config: FDConfig) -> list[int]:
    """What the model says to the prompt of case ASKED."""
    engine = EngineCore(config, LogitsProcessorChain([], config))
    prompt = cases(config.model_config.model)[ASKED].prompt
    return run_to_end(engine, [request("r", prompt, max_tokens=8)])["r"].token_ids


def refusal(config: FDConfig, kind: type[Exception] = WeightsError) -> str:
    with pytest.raises(kind) as caught:
        ModelRunner(config, LogitsProcessorChain([], config)).load_model()
    message = str(caught.value)
    assert "\n" not in message
    return message


TENSORS = (
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.1.self_attn.o_proj.weight",
    "model.layers.2.mlp.gate_proj.weight",
    "model.layers.2.mlp.up_proj.weight",
    "model.layers.2.mlp.down_proj.weight",
    "model.norm.weight",
    "lm_head.weight",
)


@pytest.mark.parametrize("tensor", TENSORS)
def test_a_missing_tensor_is_named(tmp_path: Path, tensor: str) -> None:
    message = refusal(checkpoint(tmp_path, "tiny-llama", lambda tensors: tensors.pop(tensor)))
    assert message == f"{tensor}: missing from {tmp_path / 'model.safetensors'}"


@pytest.mark.parametrize("tensor", ["model.layers.3.mlp.up_proj.weight", "model.layers.0.self_attn.q_norm.weight"])
def test_a_tensor_that_the_model_does_not_know_is_named(tmp_path: Path, tensor: str) -> None:
    extra = np.zeros((2, 2), np.float32)
    message = refusal(checkpoint(tmp_path, "tiny-llama", lambda tensors: tensors.update({tensor: extra})))
    assert tensor in message


@pytest.mark.parametrize("tensor", TENSORS)
def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(tmp_path: Path, tensor: str) -> None:
    def cut(tensors: Tensors) -> None:
        tensors[tensor] = tensors[tensor][:-1].copy()

    right = list(load_file(GOLDEN / "tiny-llama" / "model.safetensors")[tensor].shape)
    wrong = [right[0] - 1, *right[1:]]
    message = refusal(checkpoint(tmp_path, "tiny-llama", cut))
    assert message == f"{tensor}: shape {wrong} in the file, {right} expected by the model"


def test_a_file_that_is_no_safetensors_is_named(tmp_path: Path) -> None:
    config = checkpoint(tmp_path, "tiny-llama")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    message = refusal(config)
    assert str(tmp_path / "model.safetensors") in message
    assert "cannot be read as safetensors" in message


def test_weights_may_lie_in_several_files(tmp_path: Path) -> None:
    tensors = load_file(GOLDEN / "tiny-llama" / "model.safetensors")
    names = sorted(tensors)
    for part, own in enumerate((names[:10], names[10:])):
        save_file({name: tensors[name] for name in own}, tmp_path / f"model-{part}.safetensors")
    config = checkpoint(tmp_path, "tiny-llama")
    (tmp_path / "model.safetensors").unlink()
    assert answer(config) == cases("tiny-llama")[ASKED].greedy[:8]


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_another_precision_are_converted(tmp_path: Path, dtype: type[np.floating[Any]]) -> None:
    save_file({"x": np.array([0.5, -3.0], dtype)}, tmp_path / "model.safetensors")
    with open_weights([tmp_path / "model.safetensors"]) as weights:
        taken = weights.take("x", [2])
    assert taken.dtype == np.float32
    assert taken.tolist() == [0.5, -3.0]


def test_bfloat16_weights_are_converted(tmp_path: Path) -> None:
    # 1.0 and -3.5 need no more than bfloat16 has.
    save_bfloat16({"x": np.array([[1.0, -3.5]], np.float32)}, tmp_path / "model.safetensors")
    with open_weights([tmp_path / "model.safetensors"]) as weights:
        taken = weights.take("x", [1, 2])
    assert taken.dtype == np.float32
    assert taken.tolist() == [[1.0, -3.5]]


def save_bfloat16(tensors: Tensors, path: Path) -> None:
    """The upper half of every float32: a safetensors file as most published models are."""
    header: dict[str, Any] = {}
    body = b""
    for name, array in tensors.items():
        data = (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def test_a_tied_head_that_the_file_repeats_changes_nothing(tmp_path: Path) -> None:
    def same_head(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    config = checkpoint(tmp_path, "tiny-llama3-rope", same_head)
    assert answer(config) == cases("tiny-llama3-rope")[ASKED].greedy[:8]


@pytest.mark.parametrize("architectures", [["MambaForCausalLM"], [], None])
def test_an_architecture_that_is_not_supported_lists_the_supported_ones(
    tmp_path: Path, architectures: list[str] | None
) -> None:
    message = refusal(checkpoint(tmp_path, "tiny-llama", architectures=architectures), ValueError)
    assert message.endswith(f"supported are {', '.join(MODELS)}")
    assert "MambaForCausalLM" in message or not architectures


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("kind_key", ["rope_type", "type"])
def test_a_rope_type_that_is_not_supported_lists_the_supported_ones(tmp_path: Path, key: str, kind_key: str) -> None:
    config = {"rope_parameters": None, "rope_scaling": None, key: {kind_key: "yarn", "factor": 2.0}}
    message = refusal(checkpoint(tmp_path, "tiny-llama", **config), ValueError)
    assert "'yarn' is not supported; supported are default, linear and llama3" in message


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": None, "rope_theta": 500000.0, "rope_scaling": "llama3"},
        {"rope_parameters": "llama3"},
    ],
    ids=["rope_scaling", "rope_parameters"],
)
def test_both_spellings_of_rope_settings_are_read(tmp_path: Path, config: dict[str, Any]) -> None:
    llama3 = tiny_fd_config("tiny-llama3-rope").model_config.hf_config["rope_parameters"]
    config = {key: llama3 if value == "llama3" else value for key, value in config.items()}
    settled = checkpoint(tmp_path, "tiny-llama3-rope", **config)
    assert answer(settled) == cases("tiny-llama3-rope")[ASKED].greedy[:8]


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"])
def test_a_config_without_a_size_names_it(tmp_path: Path, field: str) -> None:
    config = checkpoint(tmp_path, "tiny-llama")
    hf_config = {key: value for key, value in config.model_config.hf_config.items() if key != field}
    model_config = dataclasses.replace(config.model_config, hf_config=hf_config)
    message = refusal(dataclasses.replace(config, model_config=model_config), ValueError)
    assert message == f"config.json: {field} is missing"


@pytest.mark.parametrize("change", [{"hidden_act": "gelu"}, {"hidden_act": "relu"}])
def test_a_config_that_asks_for_another_computation_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    assert next(iter(change.values())) in refusal(checkpoint(tmp_path, "tiny-llama", **change), ValueError)
