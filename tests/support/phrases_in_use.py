"""By noun, arguments with which a builtin that works on words has something to do, as the worker gets them."""

from __future__ import annotations

from typing import Any

PHRASES_IN_USE: dict[str, dict[str, Any]] = {
    "CiteFromPrompt": {"cite_boost": 1.0, "cite_conditional_boost": 2.0},
    "ForceLastPhrase": {"last_phrase": [5, 6]},
    "ForcedSequence": {"forced_sequence": [5, 6, 7]},
    "GenLength": {"gen_length_boost": 1.0},
    "LowConfidenceFallback": {"fallback_phrase": [5, 6, 7], "fallback_min_p": 1.0},
    "MaxTime": {"max_time": 0.0},
    "MultipleChoice": {"choices": [[[5, 6]], [[7]]], "choice_first_word_boost": 1.0, "choice_delimiter": [2]},
    "ThinkingBudget": {"thinking_budget": 1, "think_start": [[2]], "think_end": [[3, 4]]},
    "TriggerPhrase": {"trigger_phrase": [5, 6], "trigger_on": [[7]], "trigger_after_seconds": 0.0},
    "Watermark": {"watermark_key": 5},
}
