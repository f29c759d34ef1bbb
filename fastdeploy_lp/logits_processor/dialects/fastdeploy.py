"""FastDeploy's processors, unmodified: `LogitsProcessor(fd_config)` of its modules or of their stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect, require_methods
from fastdeploy_lp.logits_processor.fastdeploy_config import FastDeployConfig
from fastdeploy_lp.logits_processor.fastdeploy_inputs import FastDeployInputs
from fastdeploy_lp.logits_processor.phrase import Phrase
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.logits_processor.model_facts import ModelFacts
    from fastdeploy_lp.sampling_params import SamplingParams

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

    def is_argmax_invariant(self) -> bool:
        """Returns the processor's claim, False if it makes none."""
        claim = getattr(self._processor, "is_argmax_invariant", None)
        return False if claim is None else bool(claim())

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Passes the slots that have a row."""
        self._inputs.bind(share_inputs, _prepared)
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
