"""What came from elsewhere, nearly right: refused with an error of our own, or taken, and nothing else."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.noise import FIXED, Changes, changed, changes, json_values

from fastdeploy_lp.engine.client.logged_request import LogFormatError, read_line
from fastdeploy_lp.logits_processor import RequestArgsError, Selection
from fastdeploy_lp.logits_processor.arguments.forms import require_sendable
from fastdeploy_lp.messages import AbortRequests, AddRequest, FromWorker, StepOutputs, ToWorker, decoder, encode
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams
from fastdeploy_lp.request.limits import MAX_ARGUMENT_VALUES
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.stats import SchedulerStats

RECORD_FIELDS = ("format", "id", "time", "request_id", "engine", "prompt_token_ids", "params", "outputs", "error")


@given(made=changes())
@FIXED
def test_damaged_messages_are_refused_or_read(made: Changes) -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], logit_bias={5: 1.0}, seed=3, max_tokens=5)
    request = AddRequest("r", [1, 2, 3], params, Selection(flat={"a": [1, {"b": None}]}), "grammar")
    messages = (
        (ToWorker, request),
        (ToWorker, AbortRequests(["a", "b"])),
        (FromWorker, StepOutputs([], SchedulerStats(1, 2))),
    )
    for kind, message in messages:
        content = encode(message)
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            decoder(kind).decode(changed(content, made, len(content)))


@given(
    fields=st.dictionaries(st.sampled_from([*SamplingParams.__struct_fields__, "unheard_of"]), json_values, max_size=4)
)
@FIXED
def test_any_values_of_sampling_params_are_refused_or_taken(fields: dict[str, Any]) -> None:
    try:
        params = SamplingParams(**fields)
    except TypeError:  # Python's own refusal
        assert "unheard_of" in fields
    except ValueError as refusal:
        field_named = str(refusal).partition(":")[0].partition(".")[0] in fields
        if not field_named:
            raise
    else:
        assert params == SamplingParams(**fields)


@given(fields=st.dictionaries(st.sampled_from(GuidedDecodingParams.__struct_fields__), json_values, max_size=2))
@FIXED
def test_any_values_of_guided_params_are_refused_or_taken(fields: dict[str, Any]) -> None:
    with contextlib.suppress(ValueError):
        assert GuidedDecodingParams(**fields).kind in fields


@given(value=json_values)
@FIXED
def test_what_passes_as_an_argument_can_be_sent(value: Any) -> None:
    with contextlib.suppress(RequestArgsError):
        require_sendable(value, "a")
        sent = decoder(ToWorker).decode(encode(AddRequest("r", [1], SamplingParams(), Selection(flat={"a": value}))))
        assert json.dumps(sent.selection.flat["a"]) == json.dumps(value)


def test_arguments_of_too_many_values_are_refused() -> None:
    require_sendable([0] * (MAX_ARGUMENT_VALUES - 1), "a")
    with pytest.raises(RequestArgsError, match=f"a: holds more than {MAX_ARGUMENT_VALUES} values"):
        require_sendable([0] * MAX_ARGUMENT_VALUES, "a")


@given(line=st.binary(max_size=80) | json_values.map(lambda value: json.dumps(value).encode()))
@FIXED
def test_any_line_of_a_request_log_is_refused_or_read(line: bytes) -> None:
    with contextlib.suppress(LogFormatError):
        read_line(line)


@given(
    record=st.fixed_dictionaries(
        {"kind": st.sampled_from(["request", "engine"])},
        optional=dict.fromkeys(
            ("format", "id", "time", "request_id", "engine", "prompt_token_ids", "params", "outputs", "error"),
            json_values,
        ),
    )
)
@FIXED
def test_any_record_of_a_request_log_is_refused_or_read(record: dict[str, Any]) -> None:
    with contextlib.suppress(LogFormatError):
        read_line(json.dumps(record).encode())
