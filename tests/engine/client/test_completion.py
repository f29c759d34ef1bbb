from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.completions import as_tokens, feed, joined, many, run, step_sizes, texts

from fastdeploy_lp.engine.client.generation import Completion, ReplayError
from fastdeploy_lp.engine.tokenizer import Tokenizer
from fastdeploy_lp.messages import TokenLogprobs
from fastdeploy_lp.request.outputs import CompletionDelta, CompletionOutput, Logprob

IM_END = 2
VOCAB_SIZE = 49152

# Text


@many
@given(text=texts.filter(bool), sizes=step_sizes)
def test_joined_deltas_are_the_whole_text(tokenizer: Tokenizer, text: str, sizes: list[int]) -> None:
    completion, deltas = run(tokenizer, text, sizes=sizes)
    assert joined(deltas) == as_tokens(tokenizer, text)
    assert [token for delta in deltas for token in delta.token_ids] == tokenizer.encode(text)
    assert completion.num_tokens == len(tokenizer.encode(text))


@many
@given(token_ids=st.lists(st.integers(0, VOCAB_SIZE - 1) | st.integers(17, 272), min_size=1, max_size=30))
def test_whatever_the_model_says_deltas_join_to_what_the_tokenizer_decodes(
    tokenizer: Tokenizer, token_ids: list[int]
) -> None:
    deltas = feed(Completion(0, tokenizer, []), token_ids)
    assert joined(deltas) == tokenizer.decode(token_ids)
    assert [token for delta in deltas for token in delta.token_ids] == token_ids


@many
@given(text=texts.filter(bool))
def test_a_delta_never_ends_within_a_character(tokenizer: Tokenizer, text: str) -> None:
    _, deltas = run(tokenizer, text)
    whole, so_far = as_tokens(tokenizer, text), ""
    for delta in deltas:
        so_far += delta.text
        assert whole.startswith(so_far)


def test_only_the_last_delta_carries_the_reasons(tokenizer: Tokenizer) -> None:
    completion, deltas = run(tokenizer, "The sky is blue today.")
    assert len(deltas) > 3
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert (completion.finish_reason, completion.stop_reason) == ("length", None)


def test_deltas_carry_the_index_of_their_completion(tokenizer: Tokenizer) -> None:
    completion = Completion(3, tokenizer, [])
    assert {delta.index for delta in feed(completion, tokenizer.encode("One two"))} == {3}


def test_there_is_no_delta_while_there_is_nothing_to_tell(tokenizer: Tokenizer) -> None:
    completion = Completion(0, tokenizer, [])
    assert completion.take_delta() is None
    emoji = tokenizer.encode("🙂")
    assert len(emoji) > 1
    completion.feed(emoji[:1], None, None)
    assert completion.take_delta() is None
    completion.feed(emoji[1:], None, None)
    delta = completion.take_delta()
    assert delta is not None
    assert (delta.text, delta.token_ids) == ("🙂", emoji)
    assert completion.take_delta() is None


@pytest.mark.parametrize("kept", [1, 2])
def test_a_character_that_stays_incomplete_shows_as_the_tokenizer_shows_it(tokenizer: Tokenizer, kept: int) -> None:
    greeting, flamingo = tokenizer.encode("Hi"), tokenizer.encode("🦩")
    assert len(flamingo) == 3
    deltas = feed(Completion(0, tokenizer, []), [*greeting, *flamingo[:kept]])
    assert joined(deltas) == "Hi\ufffd"


def test_a_finishing_special_token_is_counted_but_not_shown(tokenizer: Tokenizer) -> None:
    completion = Completion(0, tokenizer, [])
    tokens = [*tokenizer.encode("Paris"), IM_END]
    completion.feed(tokens, "stop", IM_END)
    delta = completion.take_delta()
    assert delta == CompletionDelta(0, "Paris", tokens, "stop", IM_END)
    assert completion.num_tokens == len(tokens)


def test_a_completion_that_ends_without_text_still_says_so(tokenizer: Tokenizer) -> None:
    completion = Completion(0, tokenizer, ["never"])
    completion.feed([IM_END], "stop", IM_END)
    assert completion.take_delta() == CompletionDelta(0, "", [IM_END], "stop", IM_END)


# Stop strings


def before_first(text: str, stops: Sequence[str]) -> str:
    return text[: min((at for at in map(text.find, stops) if at >= 0), default=len(text))]


@many
@given(
    parts=st.lists(texts, min_size=2, max_size=2),
    stop=st.text(st.sampled_from("ab #\né漢🙂"), min_size=1, max_size=6),
    sizes=step_sizes,
)
def test_text_ends_before_a_stop_string_wherever_tokens_cut_it(
    tokenizer: Tokenizer, parts: list[str], stop: str, sizes: list[int]
) -> None:
    text = stop.join(parts)
    whole = as_tokens(tokenizer, text)
    assert stop in whole
    completion, deltas = run(tokenizer, text, [stop], sizes)
    assert joined(deltas) == before_first(whole, [stop])
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)


@many
@given(text=texts.filter(bool), stops=st.lists(texts.filter(bool), min_size=1, max_size=4))
def test_nothing_is_held_back_for_good(tokenizer: Tokenizer, text: str, stops: list[str]) -> None:
    tokens = tokenizer.encode(text)
    whole = tokenizer.decode(tokens)
    completion = Completion(0, tokenizer, [stop for stop in stops if stop not in whole])
    assert joined(feed(completion, [*tokens, IM_END])) == whole
    assert completion.finish_reason == "length"


@many
@given(text=st.text(st.sampled_from("ab#"), min_size=1, max_size=40))
def test_text_that_may_become_a_stop_string_is_not_shown(tokenizer: Tokenizer, text: str) -> None:
    stop = "ab#ab"
    tokens = tokenizer.encode(text)
    completion = Completion(0, tokenizer, [stop])
    shown = ""
    for count, token in enumerate(tokens, start=1):
        completion.feed([token], None, None)
        delta = completion.take_delta()
        shown += delta.text if delta is not None else ""
        so_far = before_first(tokenizer.decode(tokens[:count]), [stop])
        assert so_far.startswith(shown)
        if completion.finish_reason is not None:
            assert shown == so_far
            break
        beginning = max(length for length in range(len(stop)) if so_far.endswith(stop[:length]))
        assert len(shown) <= len(so_far) - beginning


@pytest.mark.parametrize("stops", [["day", "sky"], ["sky", "day"], ["sky is", "e", "is", "today"]])
def test_the_earliest_of_several_stop_strings_wins(tokenizer: Tokenizer, stops: list[str]) -> None:
    text = "Blu sky is todays"
    completion, deltas = run(tokenizer, text, stops, sizes=[100])
    assert joined(deltas) == before_first(text, stops) == "Blu "
    assert str(completion.stop_reason).startswith("sky")


def test_a_stop_string_at_the_very_beginning_leaves_no_text(tokenizer: Tokenizer) -> None:
    completion, deltas = run(tokenizer, "Stop here", ["Stop"])
    assert joined(deltas) == ""
    assert completion.finish_reason == "stop"


def test_a_stop_string_that_spans_many_tokens_is_found(tokenizer: Tokenizer) -> None:
    stop = "one two three four five"
    assert len(tokenizer.encode(stop)) > 4
    completion, deltas = run(tokenizer, f"Count: {stop} six", [stop])
    assert joined(deltas) == "Count: "
    assert completion.stop_reason == stop


def test_tokens_behind_a_stop_string_are_dropped(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("a. b. c. d.")
    completion = Completion(0, tokenizer, ["b"])
    completion.feed(tokens, "length", None)
    count = completion.num_tokens
    assert count < len(tokens)
    assert "b" in tokenizer.decode(tokens[:count])
    assert "b" not in tokenizer.decode(tokens[: count - 1])
    delta = completion.take_delta()
    assert delta is not None
    assert (delta.text, delta.token_ids) == ("a. ", tokens[:count])
    completion.feed(tokens, "length", None)
    assert completion.num_tokens == count
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "b")


def test_a_stop_string_in_the_final_step_wins_over_length(tokenizer: Tokenizer) -> None:
    completion, deltas = run(tokenizer, "now stop", ["stop"])
    assert (joined(deltas), completion.finish_reason) == ("now ", "stop")


def test_a_stop_string_that_only_flushed_bytes_complete_is_found(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("Hi🦩")[:-1]
    completion = Completion(0, tokenizer, ["\ufffd"])
    deltas = feed(completion, tokens)
    assert joined(deltas) == "Hi"
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "\ufffd")


def test_without_the_stop_string_the_models_own_end_stands(tokenizer: Tokenizer) -> None:
    completion = Completion(0, tokenizer, ["never"])
    completion.feed([*tokenizer.encode("Paris"), IM_END], "stop", IM_END)
    assert (completion.finish_reason, completion.stop_reason) == ("stop", IM_END)


def test_text_that_cannot_begin_a_stop_string_is_not_delayed_further_than_it_needs(tokenizer: Tokenizer) -> None:
    completion = Completion(0, tokenizer, ["##"])
    completion.feed(tokenizer.encode("plain words and more"), None, None)
    delta = completion.take_delta()
    assert delta is not None
    assert len("plain words and more") - len(delta.text) <= 1


@settings(max_examples=500)
@given(
    text=texts.filter(lambda text: len(text) > 1),
    border=st.integers(0, 100),
    reach=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    sizes=step_sizes,
    include_stop=st.booleans(),
)
def test_pieces_join_to_the_text_before_a_stop_string_that_tokens_cut(
    tokenizer: Tokenizer, text: str, border: int, reach: tuple[int, int], sizes: list[int], include_stop: bool
) -> None:
    """Whatever the text: the stop string is a part of it that begins in one token and ends in a later one."""
    tokens = tokenizer.encode(text)
    whole = tokenizer.decode(tokens)
    borders = borders_within(tokenizer, tokens)
    assume(borders)
    cut = borders[border % len(borders)]
    stop = whole[max(cut - reach[0], 0) : cut + reach[1]]
    completion = Completion(0, tokenizer, [stop], include_stop=include_stop)
    deltas = feed(completion, tokens, sizes)
    assert joined(deltas) == before_first(whole, [stop]) + (stop if include_stop else "")
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert not any(delta.text == "" for delta in deltas[:-1])


def borders_within(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[int]:
    """Places in the text where one token ends and another begins."""
    decoder, length, borders = tokenizer.decode_stream(), 0, set()
    for token in token_ids:
        length += len(decoder.push(token))
        borders.add(length)
    return sorted(borders - {0, length})


# Stop tokens and special tokens


def test_a_stop_tokens_text_is_cut_off_unless_asked_for(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("one two three")
    for include_stop, text in ((False, "one two"), (True, "one two three")):
        for in_one_step in (False, True):
            completion = Completion(0, tokenizer, [], include_stop=include_stop)
            steps = [tokens] if in_one_step else [[token] for token in tokens]
            for step in steps[:-1]:
                completion.feed(step, None, None)
            completion.feed(steps[-1], "stop", tokens[-1])
            assert completion.take_delta() == CompletionDelta(0, text, tokens, "stop", tokens[-1])


@many
@given(
    token_ids=st.lists(st.sampled_from([0, 1, 2]) | st.integers(17, 3000), min_size=1, max_size=20), skip=st.booleans()
)
def test_special_tokens_are_shown_on_request(tokenizer: Tokenizer, token_ids: list[int], skip: bool) -> None:
    deltas = feed(Completion(0, tokenizer, [], skip_special_tokens=skip), token_ids)
    text = tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert joined(deltas) == text
    special = [token for token in token_ids if token <= 2]
    assert text.count("<|") >= (0 if skip else len(special))


def test_a_final_special_token_is_shown_only_with_both_options(tokenizer: Tokenizer) -> None:
    shown = {}
    for include_stop, skip in ((False, False), (True, False), (True, True)):
        completion = Completion(0, tokenizer, [], include_stop=include_stop, skip_special_tokens=skip)
        completion.feed([*tokenizer.encode("Paris"), IM_END], "stop", IM_END)
        shown[include_stop, skip] = joined([delta] if (delta := completion.take_delta()) else [])
    assert shown == {(False, False): "Paris", (True, False): "Paris<|im_end|>", (True, True): "Paris"}


# The border between the reasons


def test_a_stop_string_that_ends_exactly_at_the_limit_is_a_stop(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("one two")
    completion = Completion(0, tokenizer, ["two"])
    completion.feed(tokens, "length", None)
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "two")


def test_an_aborted_completion_gives_what_it_held_back(tokenizer: Tokenizer) -> None:
    completion = Completion(0, tokenizer, ["never there"])
    completion.feed(tokenizer.encode("and never th"), None, None)
    completion.finish_reason = "abort"
    delta = completion.take_delta()
    assert delta is not None
    assert (delta.text, delta.finish_reason) == ("and never th", "abort")


# Minimum length


@pytest.mark.parametrize("min_tokens", [0, 1, 2, 3, 4, 6])
def test_a_stop_string_counts_behind_the_minimum_only(tokenizer: Tokenizer, min_tokens: int) -> None:
    token_ids = tokenizer.encode(" one two one two one two")
    assert len(token_ids) == 6
    completion = Completion(0, tokenizer, ["two"], min_tokens=min_tokens)
    text = joined(feed(completion, token_ids))
    stops_at = next((length for length in (2, 4, 6) if length > min_tokens), None)
    if stops_at is None:
        assert (text, completion.finish_reason) == (" one two one two one two", "length")
    else:
        assert (text, completion.stop_reason) == (" one two" * (stops_at // 2 - 1) + " one ", "two")
        assert completion.num_tokens == stops_at


# Logprobs


def logprobs_of(token_id: int) -> TokenLogprobs:
    return TokenLogprobs([token_id, 5, token_id], [-0.5 * token_id, -0.25, -0.5 * token_id], token_id)


@many
@given(texts, step_sizes, st.lists(st.sampled_from(["a", "the", "🙂"]), max_size=2))
def test_every_token_comes_with_its_own_logprobs(
    tokenizer: Tokenizer, text: str, sizes: list[int], stop: list[str]
) -> None:
    token_ids = tokenizer.encode(text)
    completion = Completion(0, tokenizer, stop, logprobs=True)
    output = CompletionOutput(0, "", [])
    rest, size_of_step = list(token_ids), iter(sizes)
    while rest and completion.finish_reason is None:
        size = next(size_of_step, 1)
        step, rest = rest[:size], rest[size:]
        completion.feed(step, None if rest else "length", None, [logprobs_of(token) for token in step])
        if (delta := completion.take_delta()) is not None:
            output.extend(delta)
    if not token_ids:
        return
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.text_offsets) == len(output.token_ids)
    for token, position, offset in zip(output.token_ids, output.logprobs, output.text_offsets, strict=True):
        assert next(iter(position)) == token
        assert position[token] == Logprob(-0.5 * token, token, tokenizer.token_text(token))
        assert set(position) == {token, 5}
        assert 0 <= offset <= len(output.text)
    assert output.text_offsets == sorted(output.text_offsets)
    assert output.cumulative_logprob == pytest.approx(sum(-0.5 * token for token in output.token_ids))


def test_without_logprobs_there_are_none(tokenizer: Tokenizer) -> None:
    completion = Completion(0, tokenizer, [])
    (*_, last) = feed(completion, tokenizer.encode("some text"))
    assert (last.logprobs, last.text_offsets) == (None, [])


# Run again on another worker


@many
@given(texts, st.integers(0, 12), st.integers(0, 12), st.lists(st.sampled_from(["a", "b ", "漢", "c."]), max_size=2))
def test_what_runs_again_is_told_once(
    tokenizer: Tokenizer, text: str, first: int, second: int, stop: list[str]
) -> None:
    """Interrupted twice, also before it has caught up, it tells what it tells uninterrupted."""
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assume(token_ids)
    _, calm = run(tokenizer, text, stop)
    completion = Completion(0, tokenizer, stop)
    deltas = []
    for interrupted in (first, second):
        for token_id in token_ids[: min(interrupted, len(token_ids) - 1)]:
            if completion.finish_reason is None:
                completion.feed([token_id], None, None)
                deltas += [delta for delta in [completion.take_delta()] if delta is not None]
        if completion.finish_reason is None:
            completion.begin_again()
    if completion.finish_reason is None:
        deltas += feed(completion, token_ids)
    assert joined(deltas) == joined(calm)
    assert [token for delta in deltas for token in delta.token_ids] == [t for delta in calm for t in delta.token_ids]


@pytest.mark.parametrize("end", [False, True])
def test_an_answer_that_differs_from_what_was_told_is_refused(tokenizer: Tokenizer, end: bool) -> None:
    token_ids = tokenizer.encode("one two three four", add_special_tokens=False)
    running = Completion(0, tokenizer, [])
    for token_id in token_ids[:3]:
        running.feed([token_id], None, None)
        running.take_delta()
    running.begin_again()
    running.feed(token_ids[:1], None, None)
    other = token_ids[1] if end else token_ids[1] + 1
    with pytest.raises(ReplayError, match="differs"):
        running.feed([other], "length" if end else None, None)


def with_values(completion: Completion, token_ids: Sequence[int], *, last: bool = True) -> list[CompletionDelta]:
    """Feed a token a step, with its place as a value, and a finish with another one; gives the deltas on the way."""
    deltas = []
    for place, token in enumerate(token_ids):
        completion.feed([token], None, None, emitted=[("P", str(place).encode())])
        deltas += [completion.take_delta()]
    if last:
        completion.feed([], "stop", {"processor": "P", "reason": "done"}, emitted=[("P", b'{"end": 1}')])
        deltas += [completion.take_delta()]
    return [delta for delta in deltas if delta is not None]


def test_values_come_with_their_tokens_and_the_last_one_with_the_end(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("one two three")
    deltas = with_values(Completion(0, tokenizer, ()), token_ids)
    seen = 0
    for delta in deltas[:-1]:
        places = list(range(seen, seen + len(delta.token_ids)))
        assert delta.logits_processors_outputs == {"P": places}
        seen += len(delta.token_ids)
    assert deltas[-1].logits_processors_outputs == {"P": [*range(seen, len(token_ids)), {"end": 1}]}
    assert deltas[-1].stop_reason == {"processor": "P", "reason": "done"}
    assert joined(deltas) == "one two three"


def test_a_stop_string_drops_the_values_after_it(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("one two three four")
    completion = Completion(0, tokenizer, (" three",))
    values = [
        v for delta in with_values(completion, token_ids) for v in (delta.logits_processors_outputs or {}).get("P", [])
    ]
    assert values == list(range(completion.num_tokens))
    assert (completion.num_tokens < len(token_ids), completion.stop_reason) == (True, " three")


@pytest.mark.parametrize("told", [0, 2, 4])
def test_a_restarted_completion_sends_no_value_twice(tokenizer: Tokenizer, told: int) -> None:
    token_ids = tokenizer.encode("one two three four")
    completion = Completion(0, tokenizer, ())
    deltas = with_values(completion, token_ids[:told], last=False)
    completion.begin_again()
    deltas += with_values(completion, token_ids)
    values = [v for delta in deltas for v in (delta.logits_processors_outputs or {}).get("P", [])]
    assert values == [*range(len(token_ids)), {"end": 1}]
    assert joined(deltas) == "one two three four"
