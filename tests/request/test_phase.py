"""Phases of outputs, against a reading of the whole text."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fastdeploy_lp.config import ChatConfig
from fastdeploy_lp.engine.message_parser import MessageParsers
from fastdeploy_lp.request.phase import NO_PARTS, Parts, PhaseError, PhasePosition, phase_of

TEMPLATE = "… <tool_call> …"


def parts(reasoning: str | None) -> Parts:
    config = ChatConfig(reasoning_parser=reasoning, enable_auto_tool_choice=True)
    return MessageParsers(config, TEMPLATE).parts


THINKS, REASONS = parts("qwen3"), parts("deepseek_r1")


def inside(when: dict[str, Any], tokens: list[bytes], known: Parts = NO_PARTS) -> str:
    """A letter for each token and the one after them: i for inside, o for outside."""
    position = PhasePosition(phase_of(when, "when", known))
    found = "io"[not position.inside]
    for token in tokens:
        position.push(token)
        found += "io"[not position.inside]
    return found


def pieces(text: str, choice: random.Random) -> list[bytes]:
    """The bytes of a text in pieces at random places, also inside of characters."""
    data = text.encode()
    cuts = sorted(choice.sample(range(1, len(data)), choice.randrange(len(data)))) if len(data) > 1 else []
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize(
    ("when", "found"),
    [
        ({"after": "</t>"}, "ooooi" + "i" * 5),
        ({"before": "</t>"}, "iiiio" + "o" * 5),
        ({"after_tokens": 3}, "ooo" + "i" * 7),
        ({"after_tokens": 0}, "i" * 10),
        ({"after": "</t>", "before": "b"}, "ooooi" + "iooo" + "o"),
        ({"after": "</t>", "after_tokens": 6}, "oooooo" + "iiii"),
        ({"before": "b", "after_tokens": 2}, "ooiiii" + "oooo"),
    ],
    ids=str,
)
def test_a_phase_begins_after_the_token_that_completes_its_marker(when: dict[str, Any], found: str) -> None:
    assert inside(when, [b"a", b"</", b"t", b">", b"a", b"b", b"a", b"</t>", b"a"]) == found


@pytest.mark.parametrize(
    ("when", "known", "text", "marked"),
    [
        ({"in": "reasoning"}, THINKS, "<think>", "R"),
        ({"in": "answer"}, THINKS, "<think>", "A"),
        ({"in": "reasoning"}, REASONS, "", "R"),
        ({"in": "answer"}, REASONS, "", "A"),
    ],
    ids=str,
)
def test_reasoning_and_answer_are_told_apart_in_any_tokenization(
    when: dict[str, Any], known: Parts, text: str, marked: str
) -> None:
    choice = random.Random(0)
    for _ in range(300):
        begin = choice.choice(["", " \n"]) + text
        thought = "".join(choice.choices(["a", "<", "</think", "é", "🤔", "\n", "<think>"], k=choice.randrange(6)))
        answer = "".join(choice.choices(["a", "</think>", "<tool_call>", "é"], k=choice.randrange(5)))
        whole = f"{begin}{thought}</think>{answer}"
        if not whole.startswith(begin) or whole.index("</think>") != len(begin) + len(thought):
            continue
        tokens = pieces(whole, choice)
        ends = [sum(map(len, tokens[:count])) for count in range(len(tokens) + 1)]
        begun, ended = len(begin.encode()), len(f"{begin}{thought}</think>".encode())
        of = {"R": [begun <= end < ended for end in ends], "A": [end >= ended for end in ends]}[marked]
        if marked == "R" and not text:
            of = [end < ended for end in ends]
        assert inside(when, tokens, known) == "".join("io"[not each] for each in of), tokens


def test_an_output_without_reasoning_is_all_answer() -> None:
    choice = random.Random(1)
    for text in ("a <think>b</think>", "<thinking>", "</think>a", "<", " <b", "é"):
        for _ in range(20):
            tokens = pieces(text, choice)
            found = inside({"in": "answer"}, tokens, THINKS)
            decided = next(
                (n for n in range(1, len(tokens) + 1) if not _may_open(b"".join(tokens[:n]))), len(tokens) + 1
            )
            assert found == "o" * decided + "i" * (len(tokens) + 1 - decided)
            assert set(inside({"in": "reasoning"}, tokens, THINKS)) == {"o"}


def _may_open(seen: bytes) -> bool:
    text = seen.decode(errors="replace").lstrip()
    return len(text) < len("<think>") and "<think>".startswith(text)


def test_calls_follow_one_another() -> None:
    text = "<think><tool_call></think>a<tool_call>{}</tool_call> <tool_call>{}</tool_call>b"
    tokens = [bytes([byte]) for byte in text.encode()]
    found = inside({"in": "tool_call"}, tokens, THINKS)
    assert [text[place] for place, each in enumerate(found[:-1]) if each == "i"] == list("{}</tool_call>{}</tool_call>")
    assert found[-1] == "o"
    straight = inside({"in": "tool_call"}, [b"<tool_call>", b"{}</tool_call><tool_call>", b"{", b"}"], THINKS)
    assert straight == "oiiii"


@pytest.mark.parametrize(
    ("when", "error"),
    [
        ({}, "when: must be an object"),
        ([], "when: must be an object"),
        ("after", "when: must be an object"),
        ({"until": "x"}, r"when\.until: is unknown here; allowed are after, before, after_tokens, in"),
        ({"after": ""}, r"when\.after: must be a text"),
        ({"before": 1}, r"when\.before: must be a text"),
        ({"after": "\ud800"}, r"when\.after: no valid Unicode"),
        ({"after": "x" * 300}, r"when\.after: has 300 bytes; at most 256"),
        ({"after_tokens": -1}, r"when\.after_tokens: must be an integer from 0"),
        ({"after_tokens": True}, r"when\.after_tokens: must be an integer from 0"),
        ({"after_tokens": 1.0}, r"when\.after_tokens: must be an integer from 0"),
        ({"in": "thoughts"}, r"when\.in: 'thoughts' is none of reasoning, answer, tool_call"),
        ({"in": "answer", "after": "x"}, r"when\.in: cannot stand beside after"),
        ({"in": "answer"}, r"when\.in: this server cannot find the answer .* --reasoning-parser; it finds: tool_call"),
        ({"in": ["answer"]}, r"when\.in: \['answer'\] is none of"),
    ],
    ids=str,
)
def test_a_wrong_phase_is_refused(when: Any, error: str) -> None:
    with pytest.raises(PhaseError, match=f"^{error}"):
        phase_of(when, "when", parts(None))


def test_a_server_without_a_tokenizer_counts_tokens_only() -> None:
    assert phase_of({"after_tokens": 2}, "when", NO_PARTS, handles_text=False).after_tokens == 2
    with pytest.raises(PhaseError, match="no tokenizer"):
        phase_of({"after": "x"}, "when", NO_PARTS, handles_text=False)
