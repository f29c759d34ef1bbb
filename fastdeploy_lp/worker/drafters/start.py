"""Builds the drafters of a configuration, and measures the model that verifies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.speculation import DRAFT_MODEL, FORCED, GRAMMAR, LAYOUT, NGRAM, SUFFIX, Speculation
from fastdeploy_lp.logits_processor import LogitsProcessorChain
from fastdeploy_lp.model_executor.models.registry import CausalLM
from fastdeploy_lp.plugins import load_class
from fastdeploy_lp.worker.drafters.draft_model import DraftModelDrafter
from fastdeploy_lp.worker.drafters.drafter import Drafter
from fastdeploy_lp.worker.drafters.drafting import Drafting
from fastdeploy_lp.worker.drafters.forced import ForcedDrafter, GrammarDrafter
from fastdeploy_lp.worker.drafters.greedy_model import GreedyModel
from fastdeploy_lp.worker.drafters.layout import LayoutDrafter
from fastdeploy_lp.worker.drafters.layouts import Layouts
from fastdeploy_lp.worker.drafters.ngram import NgramDrafter
from fastdeploy_lp.worker.drafters.pass_costs import measured_passes
from fastdeploy_lp.worker.drafters.step_costs import StepCosts
from fastdeploy_lp.worker.drafters.suffix import SuffixDrafter
from fastdeploy_lp.worker.logits_mask import LogitsMask


@dataclass(frozen=True)
class Parts:
    """Parts of the worker that drafters are built from. The model's KV cache exists. takes_rounds: see `Drafting`."""

    fd_config: FDConfig
    settings: Speculation
    model: CausalLM
    mask: LogitsMask
    chain: LogitsProcessorChain
    takes_rounds: Callable[[int], bool]
    draft_model: GreedyModel | None = None

    def token_bytes(self, token: int) -> bytes:
        """Returns a token's bytes."""
        return self.fd_config.tokenizer.token_bytes(token)


def _layout_drafter(parts: Parts) -> LayoutDrafter:
    # Read now, not in a step. A model without a tokenizer has no guided requests.
    with suppress(ValueError):
        parts.token_bytes(0)
    return LayoutDrafter(Layouts(parts.token_bytes), parts.mask.allows)


SOURCES: dict[str, Callable[[Parts], Drafter]] = {
    FORCED: lambda parts: ForcedDrafter(parts.chain.forced),
    GRAMMAR: lambda parts: GrammarDrafter(parts.mask),
    LAYOUT: _layout_drafter,
    NGRAM: lambda parts: NgramDrafter(parts.settings, parts.mask.allows),
    SUFFIX: lambda parts: SuffixDrafter(parts.settings),
    DRAFT_MODEL: lambda parts: DraftModelDrafter(parts.fd_config, parts.draft_model),
}


def new_drafting(parts: Parts) -> Drafting:
    """Returns the drafting of the settings; raises ValueError for a module:Class that is no drafter."""
    drafters = [_drafter(source, parts) for source in parts.settings.sources]
    costs = _costs(parts.fd_config, parts.settings, parts.model)
    follow = parts.mask.follow if GRAMMAR in parts.settings.sources else None
    layouts = next((each.layouts for each in drafters if isinstance(each, LayoutDrafter)), None)
    return Drafting(parts.settings, drafters, costs, parts.takes_rounds, follow, layouts)


def _drafter(source: str, parts: Parts) -> Drafter:
    if source in SOURCES:
        return SOURCES[source](parts)
    drafter: Drafter = load_class(source, Drafter)(parts.fd_config)
    return drafter


def _costs(fd_config: FDConfig, settings: Speculation, model: CausalLM) -> StepCosts:
    most = fd_config.scheduler_config.max_num_seqs * (1 + settings.num_speculative_tokens)
    return measured_passes(fd_config, model, most)
