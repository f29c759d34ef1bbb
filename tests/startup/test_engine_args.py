"""Options given by a program, whose types no command line has settled."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fastdeploy_lp import LLM, FDConfig
from fastdeploy_lp.config import fd_config
from fastdeploy_lp.config.option_values import settle_part, spec_of, without_none
from fastdeploy_lp.startup.engine_args import EngineArgs

# For each kind of option, what is near to it and is none.
WRONG: dict[str, tuple[Any, ...]] = {
    "bool": ("false", 0, 1.0, None, []),
    "int": ("8", 1.5, True, math.nan, [8], -1),
    "float": ("1", True, math.nan, math.inf, [1.0], -1.0),
    "str": (5, True, ["x"], b"x"),
    "list": ("x", 5, [5], {"x": 1}),
    "dict": ("{", 5, True, ["x"]),
}


def wrong_values() -> list[tuple[str, Any]]:
    kinds = {
        field.name: [kind.partition("[")[0] for kind in str(field.type).split(" | ")] for field in fields(EngineArgs)
    }
    return [
        (name, value)
        for name, (kind, *others) in kinds.items()
        for value in WRONG[kind]
        if type(value).__name__ not in others
    ]


@pytest.mark.parametrize(("name", "value"), wrong_values())
def test_a_value_of_another_kind_is_an_error_that_begins_with_the_option(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name}[:.]"):
        EngineArgs(**{"model": "m", name: value})


def test_a_program_is_told_of_the_option_too() -> None:
    with pytest.raises(ValueError, match=r"^step_timeout: '5' is not allowed; it must be 0 or more seconds$"):
        LLM("smollm2-135m", step_timeout="5")


def test_numbers_at_their_bounds_are_allowed() -> None:
    EngineArgs(
        "m", max_num_seqs=1, max_trace_tokens=0, step_timeout=0, gpu_memory_utilization=1, cache_queue_port=65535
    )


def test_paths_are_taken_where_files_are_named() -> None:
    args = EngineArgs(Path("folder") / "model", chat_template=Path("chat.jinja"))  # type: ignore[arg-type]
    assert (args.model, args.chat_template) == ("folder/model", "chat.jinja")


def test_whitespace_is_either_any_or_none() -> None:
    with pytest.raises(ValueError, match="guided_decoding_whitespace: must not be any with guided_decoding_dis"):
        EngineArgs("m", guided_decoding_whitespace="any", guided_decoding_disable_any_whitespace=True)
    with pytest.raises(ValueError, match="guided_decoding_whitespace: 'some' is none of bounded, any, none"):
        EngineArgs("m", guided_decoding_whitespace="some")


@pytest.mark.parametrize(("hint", "expected"), [(int | None, int), (int, int), (list[str], list[str])])
def test_without_none(hint: Any, expected: Any) -> None:
    assert without_none(hint) == expected


# What an option becomes that has another name, type or value in the configuration.
CONVERTED: list[tuple[str, Any, str, Any]] = [
    ("logits_processors", ["A", LLM], "structured_outputs_config.logits_processors", ("A", spec_of(LLM))),
    ("logits_processors_on_error", "skip", "structured_outputs_config.on_error", "skip"),
    ("logits_processors_max_faults", 7, "structured_outputs_config.max_faults", 7),
    ("logits_processors_time_budget", 7.0, "structured_outputs_config.time_budget", 7.0),
    ("logits_processors_memory_budget", 7, "structured_outputs_config.memory_budget", 7),
    ("logits_processors_code_timeout", 7.0, "structured_outputs_config.code_timeout", 7.0),
    ("shadow", ["A", "A"], "structured_outputs_config.shadow", ("A",)),
    ("mandatory", ["A", "B", "A"], "structured_outputs_config.mandatory", ("A", "B")),
    ("guided_decoding_disable_any_whitespace", True, "guided_decoding_config.any_whitespace", False),
    ("guided_decoding_disable_any_whitespace", True, "guided_decoding_config.json_whitespace", "none"),
    ("guided_decoding_whitespace", "any", "guided_decoding_config.json_whitespace", "any"),
    ("guided_decoding_max_bytes", 7, "guided_decoding_config.max_bytes", 7),
    ("guided_decoding_timeout", 7.0, "guided_decoding_config.timeout", 7.0),
    ("guided_decoding_cache_size", 7, "guided_decoding_config.cache_size", 7),
    ("chat_template", "{{ messages }}", "chat_config.chat_template", "{{ messages }}"),
    ("on_worker_failure", "restart", "supervision_config.restart", True),
    ("on_worker_failure", "exit", "supervision_config.restart", False),
    ("max_worker_restarts", 7, "supervision_config.max_restarts", 7),
    ("attention_backend", "block", "device_config.attention_backend", "block"),
    ("cuda_graphs", False, "device_config.cuda_graphs", False),
    ("pinned_memory", False, "device_config.pinned_memory", False),
    ("overlap", False, "device_config.overlap", False),
]


@pytest.mark.parametrize(("name", "value", "place", "expected"), CONVERTED)
def test_an_option_arrives_in_its_part(name: str, value: Any, place: str, expected: Any) -> None:
    part, field = place.split(".")
    kind = {each.name: each.type for each in fields(FDConfig)}[part]
    settled = settle_part(getattr(fd_config, kind), EngineArgs("m", **{name: value}))
    assert getattr(settled, field) == expected


def test_a_part_built_without_options_has_their_defaults() -> None:
    args = EngineArgs("m")
    assert settle_part(fd_config.SchedulerConfig, args) == fd_config.SchedulerConfig(32, prompt_step_seconds=0.05)
    for part in (
        fd_config.StructuredOutputsConfig,
        fd_config.ChatConfig,
        fd_config.GuidedDecodingConfig,
        fd_config.ParallelConfig,
        fd_config.SupervisionConfig,
        fd_config.ObservabilityConfig,
        fd_config.DeviceConfig,
    ):
        assert settle_part(part, args) == part()
