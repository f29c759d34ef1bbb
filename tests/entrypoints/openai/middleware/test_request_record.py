"""Request ids: the client's if it is fit for a header and a log line."""

from __future__ import annotations

import re
from contextvars import copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.engine.errors import QueueFullError
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestRecord, RequestsInFlight, new_record
from fastdeploy_lp.request.limits import MAX_ANSWER_BYTES

FIT = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}", re.ASCII)


def record_with(header: bytes | None) -> RequestRecord:
    headers = [(b"host", b"here")] + ([(b"x-request-id", header)] if header is not None else [])
    return new_record({"headers": headers, "method": "GET", "path": "/"})


@given(header=st.binary(max_size=200) | st.from_regex(FIT, fullmatch=True).map(str.encode))
def test_an_id_is_the_clients_or_a_made_one(header: bytes) -> None:
    text = header.decode("latin-1")
    request_id = record_with(header).request_id
    assert FIT.fullmatch(request_id)
    assert (request_id == text) == bool(FIT.fullmatch(text))


def test_made_ids_differ() -> None:
    assert record_with(None).request_id != record_with(None).request_id


@given(given_id=st.text(max_size=200) | st.from_regex(FIT, fullmatch=True))
def test_the_bodys_id_goes_before_the_headers_if_it_is_fit(given_id: str) -> None:
    record = record_with(b"from-the-header")
    # The log's lines get the adopted id too, for as long as the context lives.
    copy_context().run(record.adopt, given_id)
    assert record.request_id == (given_id if FIT.fullmatch(given_id) else "from-the-header")
    record.adopt(None)
    assert FIT.fullmatch(record.request_id)


def test_long_answers_are_held_to_one_bound_until_they_are_read() -> None:
    in_flight = RequestsInFlight()
    first, second = record_with(None), record_with(None)
    in_flight.add(first)
    in_flight.add(second)
    # Alone, any answer that a request may have has room.
    in_flight.hold_answer(first, 2 * MAX_ANSWER_BYTES)
    in_flight.hold_answer(second, 0)
    with pytest.raises(QueueFullError, match=str(MAX_ANSWER_BYTES)):
        in_flight.hold_answer(second, 1)
    in_flight.remove(first)
    in_flight.hold_answer(second, MAX_ANSWER_BYTES)
