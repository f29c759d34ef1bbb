"""vLLM's description of a step for its sampler; never created here, processors import it for annotations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastdeploy_lp.logits_processor.vllm_compat.state import LogitsProcessors


@dataclass
class SamplingMetadata:
    """Metadata fields under vLLM's names; tensors are None for a step that does not need them."""

    temperature: Any = None
    all_greedy: bool = False
    all_random: bool = False
    top_p: Any = None
    top_k: Any = None
    generators: dict[int, Any] = field(default_factory=dict)
    max_num_logprobs: int | None = None
    no_penalties: bool = True
    prompt_token_ids: Any = None
    frequency_penalties: Any = None
    presence_penalties: Any = None
    repetition_penalties: Any = None
    output_token_ids: list[list[int]] = field(default_factory=list)
    allowed_token_ids_mask: Any = None
    bad_words_token_ids: dict[int, list[list[int]]] = field(default_factory=dict)
    logitsprocs: LogitsProcessors = field(default_factory=LogitsProcessors)
