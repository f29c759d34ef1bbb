"""Random tiny decoders of awkward sizes, for tests that drive an executor directly."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import paddle
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastdeploy_lp.config import (
    CacheConfig,
    FDConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from fastdeploy_lp.model_executor.decoder_weights import DecoderWeights, FloatArray, LayerWeights, LinearWeights
from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
from fastdeploy_lp.model_executor.layers.rotary import RotaryTables
from fastdeploy_lp.model_executor.models.decoder import CompiledDecoder, Executor
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.models.paddle_decoder import PaddleDecoder
from fastdeploy_lp.model_executor.ops import compiled_ops
from support.stored_weights import STORED, as_stored

PRECISIONS = (None, "bfloat16", "w8a8", "w8a16")
CACHE_DTYPES = ("float32", "float16")
BLOCK_SIZES = (1, 4, 16, 20, 32)
ROPE_THETA = 10000.0


@dataclass(frozen=True)
class Shape:
    """The sizes of a random decoder and which optional parts it has; `seed` draws its weights.

    stored: as what the checkpoint holds its matrices, a key of `STORED`.
    """

    head_dim: int = 16
    kv_heads: int = 2
    group: int = 3
    hidden: int = 40
    intermediate: int = 50
    vocab: int = 70
    layers: int = 2
    biased: frozenset[str] = frozenset()
    qk_norm: bool = False
    tied: bool = False
    stored: str = "float32"
    seed: int = 0

    @property
    def dimensions(self) -> Dimensions:
        return Dimensions(
            num_layers=self.layers,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_heads=self.kv_heads * self.group,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab,
            rms_norm_eps=1e-5,
            tie_word_embeddings=self.tied,
        )

    def weights(self) -> DecoderWeights:
        """The weights that `seed` stands for, as a checkpoint would give them."""
        random = np.random.default_rng(self.seed)
        embedding = as_stored(random.standard_normal((self.vocab, self.hidden), np.float32), self.stored)
        return DecoderWeights(
            embedding=embedding,
            layers=[self._layer(random) for _ in range(self.layers)],
            norm=_norm(random, self.hidden),
            lm_head=None if self.tied else self._linear(random, "lm_head", self.vocab, self.hidden),
        )

    def _layer(self, random: np.random.Generator) -> LayerWeights:
        queries, keys = self.kv_heads * self.group * self.head_dim, self.kv_heads * self.head_dim
        return LayerWeights(
            input_norm=_norm(random, self.hidden),
            q_proj=self._linear(random, "q_proj", queries, self.hidden),
            k_proj=self._linear(random, "k_proj", keys, self.hidden),
            v_proj=self._linear(random, "v_proj", keys, self.hidden),
            o_proj=self._linear(random, "o_proj", self.hidden, queries),
            post_attention_norm=_norm(random, self.hidden),
            gate_proj=self._linear(random, "gate_proj", self.intermediate, self.hidden),
            up_proj=self._linear(random, "up_proj", self.intermediate, self.hidden),
            down_proj=self._linear(random, "down_proj", self.hidden, self.intermediate),
            q_norm=_norm(random, self.head_dim) if self.qk_norm else None,
            k_norm=_norm(random, self.head_dim) if self.qk_norm else None,
        )

    def _linear(self, random: np.random.Generator, name: str, out: int, into: int) -> LinearWeights:
        weight = as_stored(random.standard_normal((out, into), np.float32) / np.float32(into**0.5), self.stored)
        bias = random.standard_normal(out, np.float32)
        return LinearWeights(weight, bias if name in self.biased else None)


def _norm(random: np.random.Generator, size: int) -> FloatArray:
    return random.uniform(0.5, 1.5, size).astype(np.float32)


@dataclass(frozen=True)
class Setting:
    """How a decoder is run. quantization: that option's value, or "bfloat16" for `--dtype bfloat16`."""

    quantization: str | None = None
    cache_dtype: str = "float32"
    block_size: int = 16
    max_model_len: int = 96
    num_blocks: int = 512

    def fd_config(self, shape: Shape) -> FDConfig:
        """The configuration, with the part of `config.json` that executors read."""
        model = ModelConfig(
            model="random",
            directory="",
            served_model_name="random",
            vocab_size=shape.vocab,
            max_model_len=self.max_model_len,
            eos_token_ids=(),
            dtype="bfloat16" if self.quantization == "bfloat16" else "float32",
            quantization=None if self.quantization == "bfloat16" else self.quantization,
            hf_config={"rope_theta": ROPE_THETA},
        )
        cache = CacheConfig(self.block_size, self.num_blocks, dtype=self.cache_dtype)
        return FDConfig(model, SchedulerConfig(8), cache, ParallelConfig(), StructuredOutputsConfig())


def paddle_decoder(shape: Shape, setting: Setting, weights: DecoderWeights | None = None) -> PaddleDecoder:
    """A decoder on Paddle's own operators."""
    decoder = PaddleDecoder(
        setting.fd_config(shape), shape.dimensions, rotary(shape, setting), weights or shape.weights()
    )
    decoder.initialize_cache(setting.num_blocks)
    return decoder


def compiled_decoder(
    shape: Shape, setting: Setting, weights: DecoderWeights | None = None, ops: ctypes.CDLL | None = None
) -> CompiledDecoder:
    """A decoder on the compiled operators, these or the package's; raises RuntimeError where there are none."""
    ops = ops or compiled_ops()
    if ops is None:
        raise RuntimeError("no compiled operators on this machine")
    config = setting.fd_config(shape)
    decoder = CompiledDecoder(ops, config, shape.dimensions, rotary(shape, setting), weights or shape.weights())
    decoder.initialize_cache(setting.num_blocks)
    return decoder


def rotary(shape: Shape, setting: Setting) -> RotaryTables:
    return RotaryTables.of({"rope_theta": ROPE_THETA}, shape.head_dim, setting.max_model_len)


@dataclass(frozen=True)
class Piece:
    """Tokens `start` … `stop - 1` of a sequence, of which the last `num_outputs` are asked for."""

    sequence: int
    start: int
    stop: int
    num_outputs: int


class Seats:
    """Token ids of several sequences and the cache blocks in which each lies, in any order."""

    def __init__(self, tokens: Sequence[NDArray[np.int64]], block_size: int, blocks: Sequence[int]) -> None:
        self.tokens = tokens
        free: Iterator[int] = iter(blocks)
        self.tables = [np.array([next(free) for _ in range(-(-len(each) // block_size))]) for each in tokens]

    def chunk(self, piece: Piece) -> SequenceChunk:
        return SequenceChunk(
            self.tokens[piece.sequence][piece.start : piece.stop],
            piece.start,
            self.tables[piece.sequence],
            piece.num_outputs,
        )


def run(executor: Executor, seats: Seats, pieces: Sequence[Piece]) -> list[FloatArray]:
    """One pass; for every piece its logits [num_outputs, vocab_size]."""
    with paddle.no_grad():
        logits = executor.compute_logits(executor.forward([seats.chunk(piece) for piece in pieces])).numpy()
    return np.split(logits, np.cumsum([piece.num_outputs for piece in pieces])[:-1])


def run_alone(executor: Executor, seats: Seats) -> list[FloatArray]:
    """The logits [tokens, vocab_size] of every sequence, each in a pass of its own."""
    whole = [Piece(index, 0, len(tokens), len(tokens)) for index, tokens in enumerate(seats.tokens)]
    return [run(executor, seats, [piece])[0] for piece in whole]


def run_schedule(executor: Executor, seats: Seats, schedule: Sequence[Sequence[Piece]]) -> list[FloatArray]:
    """The logits [outputs asked for, vocab_size] of every sequence over the passes of a schedule."""
    found: list[list[FloatArray]] = [[] for _ in seats.tokens]
    for pieces in schedule:
        for piece, logits in zip(pieces, run(executor, seats, pieces), strict=True):
            found[piece.sequence].append(logits)
    return [np.concatenate(each) for each in found]


# Strategies

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


def shapes() -> st.SearchStrategy[Shape]:
    """Sizes that fill neither a vector of 16, a panel of 32 nor a group of 32."""
    return st.builds(
        Shape,
        head_dim=st.sampled_from((8, 16, 40, 64)),
        kv_heads=st.integers(1, 2),
        group=st.sampled_from((1, 2, 3, 8)),
        hidden=st.sampled_from((8, 32, 40, 72)),
        intermediate=st.sampled_from((6, 16, 50, 96)),
        vocab=st.sampled_from((33, 64, 70)),
        layers=st.integers(1, 2),
        biased=st.sampled_from(
            (
                frozenset(),
                frozenset(("q_proj", "k_proj", "v_proj")),
                frozenset(LINEARS),
                frozenset(("q_proj", "up_proj")),
            )
        ),
        qk_norm=st.booleans(),
        stored=st.sampled_from(sorted(STORED)),
        tied=st.booleans(),
        seed=st.integers(0, 2**16),
    )


MAX_MODEL_LENS = (37, 64, 90)


@st.composite
def settings_of_a_run(
    draw: st.DrawFn, quantizations: Sequence[str | None] = PRECISIONS, max_model_lens: Sequence[int] = MAX_MODEL_LENS
) -> Setting:
    """Every precision, cache and block size; contexts are at most `max_model_len`, which blocks need not divide."""
    return Setting(
        quantization=draw(st.sampled_from(quantizations)),
        cache_dtype=draw(st.sampled_from(CACHE_DTYPES)),
        block_size=draw(st.sampled_from(BLOCK_SIZES)),
        max_model_len=draw(st.sampled_from(max_model_lens)),
    )


@st.composite
def crowds(draw: st.DrawFn, shape: Shape, setting: Setting, longest: int = 1) -> Seats:
    """One to four sequences of any length up to `max_model_len`, in blocks of any order; one has at least `longest`."""
    lengths = draw(st.lists(st.integers(1, setting.max_model_len), min_size=1, max_size=4))
    lengths[-1] = max(lengths[-1], longest)
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    needed = sum(-(-length // setting.block_size) for length in lengths)
    blocks = 1 + random.permutation(setting.num_blocks - 1)[:needed]
    return Seats([random.integers(0, shape.vocab, length) for length in lengths], setting.block_size, blocks.tolist())


@st.composite
def schedules(draw: st.DrawFn, seats: Seats) -> list[list[Piece]]:
    """Every sequence cut anywhere, its neighbours joining and leaving, all tokens asked for."""
    return _schedule(draw, seats, lambda size: size)


@st.composite
def thrifty_schedules(draw: st.DrawFn, seats: Seats) -> list[list[Piece]]:
    """The same, with any number of outputs asked for, none included."""
    return _schedule(draw, seats, lambda size: draw(st.integers(0, size)))


def _schedule(draw: st.DrawFn, seats: Seats, outputs: object) -> list[list[Piece]]:
    done = [0] * len(seats.tokens)
    schedule: list[list[Piece]] = []
    while open_ones := [i for i, tokens in enumerate(seats.tokens) if done[i] < len(tokens)]:
        joining = [i for i in draw(st.permutations(open_ones)) if draw(st.booleans())] or open_ones[:1]
        pieces = []
        for index in joining:
            size = min(draw(st.sampled_from((1, 5, 17, 33, 70))), len(seats.tokens[index]) - done[index])
            pieces.append(Piece(index, done[index], done[index] + size, outputs(size)))  # type: ignore[operator]
            done[index] += size
        schedule.append(pieces)
    return schedule
