"""FastDeploy's processors, unmodified: `LogitsProcessor(fd_config)` of its modules or of their stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.config import FDConfig, ModelConfig
from fastdeploy_lp.logits_processor.actions import Actions, RowActions, give_actions
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect, require_methods
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs, ReadOnlyError
from fastdeploy_lp.logits_processor.token_arguments import Phrase
from fastdeploy_lp.platforms.host_memory import host_tensor

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.logits_processor.dialects.base import ModelFacts
    from fastdeploy_lp.request.sampling_params import SamplingParams


ON_HOST = "_cpu"
EMPTY = -1


class FastDeployInputs(Mapping[str, Any]):
    """The slots of a step that have a row, without the others: slot r is row r of the logits.

    FastDeploy's processors disagree on the row of a slot: LogitBias counts the slots that are not stopped,
    ThinkingBudget uses the slot number. Without stopped slots both find the same row. A request's slot changes when
    another request ends, so processors must store by `req_ids` what lasts for several steps.

    Arrays are Paddle tensors on the CPU, made from host copies at a field's first read in a step. A read never waits
    for the device, and a write changes only the copy.
    """

    def __init__(self) -> None:
        self._source: Mapping[str, Any] = {}
        self._slots: NDArray[np.int64] = np.empty(0, np.int64)
        self._made: dict[str, Any] = {}
        self._prepare: Callable[[Any], Any] = lambda args: args

    def bind(self, share_inputs: Mapping[str, Any], prepare: Callable[[Any], Any]) -> None:
        """Sets the slots of a step; `prepare` converts a slot's arguments to the form that the processor reads."""
        self._source, self._prepare, self._made = share_inputs, prepare, {}
        self._slots = np.flatnonzero(~share_inputs["stop_flags"][:, 0])

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __setitem__(self, name: str, value: Any) -> NoReturn:
        raise ReadOnlyError("share_inputs")

    def __delitem__(self, name: str) -> NoReturn:
        raise ReadOnlyError("share_inputs")

    def __iter__(self) -> Iterator[str]:
        own = (name for name in self._source if not name.endswith(ON_HOST) and name not in ("using_slots", "seed"))
        yield from own
        yield from DERIVED

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _make(self, name: str) -> Any:
        if name in DERIVED:
            return host_tensor(DERIVED[name](self._source, self._slots))
        host = f"{name}{ON_HOST}"
        value = self._source[host if host in self._source else name]
        if isinstance(value, np.ndarray):
            return host_tensor(value[self._slots])
        entries = [value[slot] for slot in self._slots.tolist()]
        return [self._prepare(args) for args in entries] if name == "logits_processors_args" else entries


def _prompts(source: Mapping[str, Any], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    return _pieces(source, slots, np.zeros_like(slots), source["prompt_lens"][slots, 0])


def _outputs(source: Mapping[str, Any], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    return _pieces(source, slots, source["prompt_lens"][slots, 0], source["step_idx"][slots, 0])


def _pieces(
    source: Mapping[str, Any], slots: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns each slot's `lengths` tokens from `starts` on, at the beginning of a row."""
    tokens = source[f"token_ids_all{ON_HOST}"]
    rows = np.full((len(slots), tokens.shape[1]), EMPTY, np.int64)
    for row, (slot, start, length) in enumerate(zip(slots, starts, lengths, strict=True)):
        # The last token of a full context does not fit into the array.
        piece = tokens[slot, start : start + length]
        rows[row, : len(piece)] = piece
    return rows


def _seeds(source: Mapping[str, Any], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    seeds: NDArray[np.int64] = source["seed"][slots].view(np.int64)
    return seeds


DERIVED: dict[str, Callable[[Mapping[str, Any], NDArray[np.int64]], NDArray[Any]]] = {
    "prompt_ids": _prompts,
    "pre_ids": _outputs,
    "infer_seed": _seeds,
}
"""FastDeploy's fields that this server has no array for."""


MARKERS = {"think_start_id": "<think>", "think_end_id": "</think>", "line_break_id": "\n"}
ABSENT = -1


class FastDeployModelConfig:
    """The model's configuration with the entries of its `config.json`, and the token ids of `MARKERS`.

    A marker that is not one token of the vocabulary is -1. `dtype` is the logits' dtype, which processors use for their
    tensors.
    """

    dtype = "float32"

    def __init__(self, model_config: ModelConfig) -> None:
        self._config = model_config

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if hasattr(self._config, name):
            return getattr(self._config, name)
        if name in self._config.hf_config:
            return self._config.hf_config[name]
        if name in MARKERS:
            return self._marker_ids[name]
        raise AttributeError(f"the model's configuration has no {name!r}")

    @cached_property
    def _marker_ids(self) -> dict[str, int]:
        path = Path(self._config.directory) / "tokenizer.json"
        if self._config.skip_tokenizer_init or not path.is_file():
            return dict.fromkeys(MARKERS, ABSENT)
        from fastdeploy_lp.model_tokenizer import read_tokenizer

        tokenizer = read_tokenizer(path)
        encoded = {name: tokenizer.encode(text, add_special_tokens=False).ids for name, text in MARKERS.items()}
        return {name: ids[0] if len(ids) == 1 else ABSENT for name, ids in encoded.items()}


class FastDeployConfig:
    """An FDConfig whose `model_config` is a FastDeployModelConfig."""

    def __init__(self, fd_config: FDConfig) -> None:
        self._config = fd_config
        self.model_config = FastDeployModelConfig(fd_config.model_config)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._config, name)


INTERFACE_MODULES = ("fastdeploy.model_executor.logits_processor", "fastdeploy.openai.logits_processor")
SENTENCE, SENTENCE_IDS = "think_stop_sentence", "think_stop_sentence_token_ids"


class ThinkingBudgetArgs(BaseModel):
    """Arguments of FastDeploy's ThinkingBudget; `think_stop_sentence` reaches it as token ids."""

    model_config = ConfigDict(extra="forbid", strict=True)

    thinking_budget: Annotated[int, Field(ge=0)] | None
    think_stop_sentence: Phrase | None = None


class FastDeployDialect(Dialect):
    """Runs subclasses of FastDeploy's interface class on inputs as in FastDeploy's worker."""

    name = "fastdeploy"

    def recognizes(self, found: Any) -> bool:
        """Returns True for subclasses of the `LogitsProcessor` under FastDeploy's module names in this process."""
        bases = (getattr(sys.modules.get(name), "LogitsProcessor", None) for name in INTERFACE_MODULES)
        return isinstance(found, type) and any(base is not None and issubclass(found, base) for base in bases)

    def check(self, found: Any, spec: str) -> None:
        """Raises LogitsProcessorSpecError for missing methods or another constructor."""
        require_methods(found, spec, "FastDeploy LogitsProcessor", ("fd_config",))

    def params_model(self, found: Any) -> type[BaseModel] | None:
        """Returns the class's `Params` if any; for FastDeploy's own classes, their documented arguments."""
        own: type[BaseModel] | None = getattr(found, "Params", None)
        return own or _documented(found.__name__)

    def validate(self, found: Any, sampling_params: SamplingParams, facts: ModelFacts) -> None:  # noqa: ARG002 - contract
        """Calls `validate_params` if the class has it, since FastDeploy's interface does not."""
        if hasattr(found, "validate_params"):
            found.validate_params(sampling_params)

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Returns an instance in a `FastDeployProcessor`."""
        processor = found(FastDeployConfig(fd_config))
        return FastDeployProcessor(processor) if _documented(found.__name__) is None else UsedByArgs(processor)


class FastDeployProcessor(LogitsProcessor):
    """Native wrapper of a FastDeploy processor."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._inputs = FastDeployInputs()
        self._rows: RowActions | None = None

    def use_actions(self, actions: Actions) -> None:
        """Passes the verbs on, by rows, which are this dialect's slots."""
        self._rows = RowActions(actions)
        give_actions(self._processor, self._rows)

    def is_argmax_invariant(self) -> bool:
        """Returns the processor's claim, False if it makes none."""
        claim = getattr(self._processor, "is_argmax_invariant", None)
        return False if claim is None else bool(claim())

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Passes the slots that have a row."""
        self._inputs.bind(share_inputs, _prepared)
        if self._rows is not None:
            self._rows.bind(share_inputs["stop_flags"])
        self._processor.update_state(self._inputs)

    def apply(self, logits: Tensor) -> Tensor:
        """Returns the processor's result."""
        result: Tensor = self._processor.apply(logits)
        return result


class UsedByArgs(FastDeployProcessor):
    """Wrapper of FastDeploy's own processors, which change only requests that pass their arguments."""

    only_with_args = True


def _documented(name: str) -> type[BaseModel] | None:
    if name == "ThinkingBudgetLogitsProcessor":
        return ThinkingBudgetArgs
    if name == "LogitBiasLogitsProcessor":
        from fastdeploy_lp.logits_processor.builtin.logit_bias import LogitBiasParams

        return LogitBiasParams
    return None


def _prepared(args: ProcessorArgs) -> ProcessorArgs:
    """Returns the arguments under the names that FastDeploy's API process uses."""
    if args.get(SENTENCE) is None:
        return args
    return ProcessorArgs({**{key: args[key] for key in args if key != SENTENCE}, SENTENCE_IDS: args[SENTENCE]})
