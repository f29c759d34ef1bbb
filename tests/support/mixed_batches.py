"""Batches of requests of every kind, with an engine's options, drawn at random from a seed.

Every builtin and one processor of each dialect is declared. The processors of `support.hash_bias` bias a token that
depends on all tokens that they are shown, so that a processor with a wrong state changes the output.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any

import support.hash_bias as hash_bias
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.prepare.input_processor import InputProcessor, Settled
from fastdeploy_lp.entrypoints.declare import DeclaredEngine, declare
from fastdeploy_lp.logits_processor import DeclaredProcessor
from fastdeploy_lp.logits_processor.registry import BUILTIN
from fastdeploy_lp.logits_processor.testing.arguments import draw_arguments
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.sampling_params import SamplingParams
from support.random_requests import random_request
from support.stand_ins import vllm_stand_ins

MAX_MODEL_LEN = 192
SEED = 20
MAX_TOKENS = 96
MAX_TRACED = 10_000
HAS_TORCH = importlib.util.find_spec("torch") is not None
FAILING = "failing=support.faulty:AT_PLUGIN"
# Limits by time would depend on the machine's speed.
WITHOUT_LIMITS = {
    "logits_processors_time_budget": 0.0,
    "logits_processors_memory_budget": 0,
    "logits_processors_code_timeout": 0.0,
    "logits_processors_max_faults": 0,
    "step_timeout": 0.0,
    "log_stats_interval": 0.0,
    "max_trace_tokens": MAX_TRACED,
    "max_waiting_requests": 10_000,
}
# Processors that end or write something at a time do so at once or never.
TIMES = ("max_time", "trigger_after_seconds")
AT_ONCE, NEVER = 0.0, 1e6
ARGUMENTS_EACH = 24
# Builtins that write a phrase of several tokens, with the argument for it and what makes them begin.
WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ForcedSequenceLogitsProcessor": ("forced_sequence", {}),
    "ForceLastPhraseLogitsProcessor": ("last_phrase", {}),
    "TriggerPhraseLogitsProcessor": ("trigger_phrase", {"trigger_after_seconds": AT_ONCE}),
}
LONGEST_PHRASE = 24
TRIES = 60

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "colour": {"enum": ["red", "green", "blue"]},
        "is_open": {"type": "boolean"},
    },
    "required": ["name", "count", "colour", "is_open"],
    "additionalProperties": False,
}
LARK = 'start: "a list: " item (", " item)* "."\nitem: "fox" | "dog" | "lazy fox" | /[0-9]{2}/\n'
TAG = {"triggers": ["<"], "structures": [{"begin": "<call>", "schema": SCHEMA, "end": "</call>"}]}
FORMS: tuple[dict[str, Any], ...] = (
    {"json": SCHEMA},
    {"json": SCHEMA, "whitespace": "none"},
    {"json_object": True},
    {"regex": r"(the quick brown fox|[a-z]{3,9}) and [0-9]{1,3}\."},
    {"regex": r"[ab]*c"},
    {"choice": ["yes", "no", "the lazy dog", "the lazy fox sleeps"]},
    {"choice": ["one answer that is forced"]},
    {"grammar": LARK},
    {"structural_tag": TAG},
)


@dataclass(frozen=True)
class MixedRequest:
    """A request: `prompt` as `random_requests` has it, `fields` of SamplingParams.

    streams: read piece by piece. abort_after: output tokens after which its client leaves, which has read at least
    these. foretold: its output is known as its prediction when drafts are verified.
    """

    prompt: Any
    fields: dict[str, Any]
    streams: bool = False
    abort_after: int | None = None
    foretold: bool = False

    def settled(self, inputs: InputProcessor, prediction: Sequence[int] | None = None) -> tuple[Any, Settled]:
        """The tokenized prompt and the settled parameters; raises ValueError for a request that is refused."""
        prompt = inputs.chat_prompt(self.prompt) if self._is_chat else inputs.prompt(self.prompt)
        fields = self.fields if prediction is None else {**self.fields, "prediction": list(prediction)}
        if "guided_decoding" in fields:
            fields = {**fields, "guided_decoding": GuidedDecodingParams(**fields["guided_decoding"])}
        settled = inputs.settle(SamplingParams(**fields), prompt)
        inputs.require_traceable([settled])
        return prompt, settled

    @property
    def _is_chat(self) -> bool:
        return isinstance(self.prompt, list) and isinstance(self.prompt[0], dict)


@dataclass(frozen=True)
class Mix:
    """The model to serve, its precision (None for float32), and how large batches are."""

    model: str
    vocab_size: int
    quantization: str | None = None
    requests: int = 240
    max_tokens: int = MAX_TOKENS


@contextmanager
def every_dialect(vocab_size: int) -> Iterator[list[str | type]]:
    """The declared processors: every builtin, one processor of each dialect, and one that fails."""
    before, hash_bias.VOCAB_SIZE = hash_bias.VOCAB_SIZE, vocab_size
    own = [hash_bias.Native, hash_bias.Vllm, hash_bias.Mrv2, hash_bias.RequestTwo, hash_bias.RequestThree]
    processors: list[str | type] = [*BUILTIN, *own, "support.hash_bias:PLUGIN", FAILING]
    try:
        with vllm_stand_ins() if HAS_TORCH else nullcontext():
            yield processors + (_for_torch() if HAS_TORCH else [])
    finally:
        hash_bias.VOCAB_SIZE = before


def _for_torch() -> list[str | type]:
    from support.hash_bias_torch import HuggingFace, torch_slot_keyed_classes, torch_vllm_classes

    return [HuggingFace, *torch_vllm_classes(), *torch_slot_keyed_classes()]


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine, as `LLM` takes them."""

    model: str
    processors: list[str | type]
    options: dict[str, Any]

    def declared(self, speculation: dict[str, Any] | None = None) -> DeclaredEngine:
        """The engine's configuration and processors, with these settings of speculation."""
        return declare(self.model, self.processors, {**self.options, "speculative_config": speculation})


def random_engine(rng: Random, mix: Mix, processors: Sequence[str | type]) -> EngineOptions:
    """Draws an engine: small blocks, few of them, small steps, processors in a random order, some in shadow."""
    block_size = rng.choice([1, 2, 4, 8, 16])
    one_sequence = 1 + -(-MAX_MODEL_LEN // block_size)
    slots = rng.choice([2, 12, 24, 24, 32, 32, 48, 48])
    options: dict[str, Any] = {
        "quantization": mix.quantization,
        "max_model_len": MAX_MODEL_LEN,
        "block_size": block_size,
        "num_gpu_blocks_override": one_sequence + rng.choice([0, slots * one_sequence // 4, slots * one_sequence]),
        "max_num_seqs": slots,
        "max_num_batched_tokens": rng.choice([7, 16, 64, 64, 256, 256]),
        "enable_prefix_caching": rng.random() < 0.7,
        "prompt_step_seconds": 0.0,
        "logprobs_mode": rng.choice(["raw_logprobs", "processed_logprobs"]),
        "logits_processors_on_error": rng.choice(["fail", "skip"]),
        **WITHOUT_LIMITS,
    }
    engine = EngineOptions(mix.model, rng.sample(list(processors), len(processors)), options)
    names = [each.name for each in engine.declared().declared]
    shadow = rng.sample(names, rng.randint(1, 4)) if rng.random() < 0.4 else []
    return dataclasses.replace(engine, options={**options, "shadow": shadow})


class Catalogue:
    """Arguments that each declared processor accepts, by its name."""

    def __init__(self, declared: Sequence[DeclaredProcessor], inputs: InputProcessor, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.by_name: dict[str, list[dict[str, Any]]] = {}
        for each in declared:

            def accepts(args: dict[str, Any], name: str = each.name) -> bool:
                try:
                    inputs.chosen(SamplingParams(logits_processors={name: args}))
                except ValueError:
                    return False
                return True

            if each.source == "builtin" and each.params_model is not None:
                drawn = draw_arguments(
                    each.params_model, ARGUMENTS_EACH, vocab_size=vocab_size, seed=7, accepts=accepts
                )
                if not drawn:
                    raise RuntimeError(f"no arguments were found for {each.name}")
                self.by_name[each.name] = drawn

    def arguments(self, rng: Random, name: str) -> dict[str, Any]:
        """Arguments for a processor."""
        if name == "failing":
            return {"at": rng.randrange(12)}
        if name not in self.by_name:
            return {"hash_bias": [rng.randrange(self._vocab_size), rng.choice([1000.0, 3.25, -7.5, 0.5])]}
        drawn = dict(rng.choice(self.by_name[name]))
        return drawn | {each: rng.choice([AT_ONCE, NEVER]) for each in TIMES if each in drawn}


class RequestSource:
    """Draws requests that an engine accepts."""

    def __init__(self, rng: Random, mix: Mix, names: Sequence[str], catalogue: Catalogue) -> None:
        self._rng, self._mix, self._names, self._catalogue = rng, mix, list(names), catalogue
        self._beginnings = [self._tokens(rng.randint(8, 60)) for _ in range(3)]

    def draw(self, inputs: InputProcessor) -> MixedRequest:
        """The next request; raises RuntimeError if none of many is accepted."""
        for _ in range(TRIES):
            made = self._drawn()
            try:
                made.settled(inputs)
            except (InvalidRequestError, ValueError):
                continue
            return made
        raise RuntimeError("no request was accepted")

    def _drawn(self) -> MixedRequest:
        rng = self._rng
        plain = random_request(rng)
        fields = {**plain.fields, "max_tokens": rng.randint(1, self._mix.max_tokens)}
        fields.pop("min_tokens", None)
        if rng.random() < 0.2:
            fields["min_tokens"] = rng.randint(0, fields["max_tokens"])
        if rng.random() < 0.6:
            # Most of these stop early.
            fields.pop("stop", None)
        self._add_to(fields)
        prompt = plain.prompt if rng.random() < 0.4 else self._prompt()
        aborts = rng.random() < 0.1
        return MixedRequest(
            prompt,
            fields,
            streams=aborts or rng.random() < 0.4,
            abort_after=rng.randint(1, fields["max_tokens"]) if aborts else None,
            foretold=rng.random() < 0.2,
        )

    def _add_to(self, fields: dict[str, Any]) -> None:
        rng = self._rng

        def sometimes(name: str, value: Any, share: float) -> None:
            if rng.random() < share:
                fields[name] = value

        sometimes("prompt_logprobs", rng.randint(0, 3), 0.1)
        sometimes("guided_decoding", rng.choice(FORMS), 0.2)
        sometimes("logits_processors_trace", {"top_k": rng.randint(1, 4)}, 0.1)
        sometimes("prediction", self._tokens(rng.randint(1, 30)), 0.1)
        sometimes("speculative", False, 0.05)
        if selection := self._selection():
            # Processors such as XTC draw at a temperature of 0, too.
            fields |= {"seed": SEED, **fields, **selection}

    def _prompt(self) -> list[int]:
        """Tokens that repeat, or that several requests begin with."""
        rng = self._rng
        if rng.random() < 0.4:
            return rng.choice(self._beginnings) + self._tokens(rng.randint(1, 20))
        return (self._tokens(rng.choice([1, 3, 7, 12])) * 9)[: rng.randint(1, 70)]

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(3, self._mix.vocab_size) for _ in range(count)]

    def _selection(self) -> dict[str, Any]:
        """Fields that choose processors, in each of the forms that a request may use."""
        rng = self._rng
        form = rng.choice(["none", "none", "flat", "object", "list"])
        if form == "none":
            return {}
        chosen = rng.sample(self._names, rng.choice([1, 1, 1, 2, 4]))
        args = {name: self._catalogue.arguments(rng, name) for name in chosen}
        if rng.random() < 0.3:
            args |= self._phrase()
        if form == "flat":
            merged = {argument: value for each in args.values() for argument, value in each.items()}
            return {rng.choice(["logits_processors_args", "extra_args"]): merged}
        fields: dict[str, Any] = {"logits_processors": args}
        if form == "list":
            entries = [{"name": name, "params": each} for name, each in args.items()]
            for entry in entries:
                if rng.random() < 0.2:
                    entry["shadow"] = True
            fields["logits_processors"] = entries
        elif rng.random() < 0.2:
            fields["logits_processors_shadow"] = rng.sample(chosen, 1)
        return fields

    def _phrase(self) -> dict[str, dict[str, Any]]:
        """A processor that writes a phrase, by its name, with its arguments."""
        name = self._rng.choice(list(WRITERS))
        argument, trigger = WRITERS[name]
        return {name: {argument: self._tokens(self._rng.randint(2, LONGEST_PHRASE)), **trigger}}
