"""Models with a reference beside them, on either executor, fed with token ids."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path

import numpy as np
import paddle
from numpy.typing import NDArray

from fastdeploy_lp.checkpoint.files import read_model_files
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.loader.weights import open_weights
from fastdeploy_lp.model_executor.models.decoder import CompiledDecoder, DecoderForCausalLM, Executor
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.models.paddle_decoder import PaddleDecoder
from fastdeploy_lp.model_executor.models.registry import model_class
from fastdeploy_lp.model_executor.ops import compiled_ops
from support.tiny import GOLDEN, tiny_fd_config

MAX_MODEL_LEN = 128
BLOCK_SIZE = 16
BLOCKS_PER_SEQ = MAX_MODEL_LEN // BLOCK_SIZE
MAX_SEQS = 4
TOLERANCE = 1e-4
# With less of a lead than what executors may differ by, a token is nobody's mistake.
CLEAR_LEAD = 3e-4
EXECUTORS = ("compiled", "paddle")
FloatArray = NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Case:
    """A prompt, the reference's logits at every position of it, and its greedy continuation with the smallest lead."""

    prompt: list[int]
    logits: FloatArray
    greedy: list[int]
    lead: float


@cache
def cases(name: str) -> list[Case]:
    """Those of a golden model, or of any folder given as an absolute path."""
    logits = np.load(GOLDEN / name / "reference_logits.npz")
    content = json.loads((GOLDEN / name / "reference.json").read_text())
    return [
        Case(case["prompt_ids"], logits[f"case{index}"], case["greedy_ids"], case["min_top1_top2_gap"])
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
        """As a forward pass takes them."""
        first = 1 + self.seat * BLOCKS_PER_SEQ
        held = -(-(self.start + len(self.tokens)) // BLOCK_SIZE)
        return SequenceChunk(np.array(self.tokens), self.start, np.arange(first, first + held))


class Model:
    """A model with a KV cache for MAX_SEQS sequences that gives the logits of every token.

    name: of a golden model, or the absolute path of a directory.
    """

    def __init__(self, name: str, executor: str = "compiled") -> None:
        fd_config = tiny_fd_config(name, max_num_seqs=MAX_SEQS, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE)
        config = fd_config.model_config
        family = model_class(config.hf_config)
        if not issubclass(family, DecoderForCausalLM):
            raise TypeError(f"{family.__name__} is no DecoderForCausalLM")
        dims = Dimensions.from_hf_config(config.hf_config)
        rotary = RotaryTables.of(config.hf_config, dims.head_dim, MAX_MODEL_LEN)
        files = read_model_files(Path(config.directory), need_tokenizer=False).weights
        with paddle.no_grad(), open_weights(files) as weights:
            parts = family.read_weights(weights, dims, config.hf_config)
            ops = compiled_ops() if executor == "compiled" else None
            self.executor: Executor = (
                PaddleDecoder(fd_config, dims, rotary, parts)
                if ops is None
                else CompiledDecoder(ops, fd_config, dims, rotary, parts)
            )
            weights.require_all_taken()
        self.executor.initialize_cache(fd_config.cache_config.num_blocks)

    def last_logits(self, *runs: Run) -> FloatArray:
        """Logits [runs, vocab_size] of the last token of every run."""
        with paddle.no_grad():
            found: FloatArray = self.executor.compute_logits(self.executor.forward([run.chunk for run in runs])).numpy()
        return found

    def logits(self, *runs: Run) -> list[FloatArray]:
        """For every run the logits [tokens, vocab_size] of all of its tokens, computed in one pass."""
        chunks = [dataclasses.replace(run.chunk, num_outputs=len(run.tokens)) for run in runs]
        with paddle.no_grad():
            logits = self.executor.compute_logits(self.executor.forward(chunks)).numpy()
        return np.split(logits, np.cumsum([len(run.tokens) for run in runs])[:-1])

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The most likely continuation, a token at a time."""
        found: list[int] = []
        run = Run(prompt, seat=0)
        for _ in range(count):
            found.append(int(self.last_logits(run)[0].argmax()))
            run = Run([found[-1]], seat=0, start=run.start + len(run.tokens))
        return found


@cache
def model(name: str, executor: str = "compiled") -> Model:
    """One for all tests that do not change it."""
    return Model(name, executor)


def assert_close(actual: FloatArray, expected: FloatArray) -> None:
    """Within 1e-4 everywhere."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)
