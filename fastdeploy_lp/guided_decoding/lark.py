"""Grammars in the library's variant of Lark's notation, written for requests that do not bring one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Free text, in which a lazy rule finds its trigger as soon as it is written.
FREE_TEXT = "TEXT: /(.|\\n)*/"


@dataclass(frozen=True)
class Tagged:
    """JSON between two texts: `begin`, what `schema` allows, `end`; `begin` starts with its `trigger`."""

    begin: str
    schema: Mapping[str, Any]
    end: str


def one_of(texts: Sequence[str]) -> str:
    """A grammar of these strings and nothing else."""
    return f"start: CHOICE\nCHOICE: {' | '.join(map(quoted, texts))}\n"


def free_text_with(tags: Sequence[Tagged], triggers: Sequence[str]) -> str:
    """A grammar of any text; a trigger that is written has to go on as one of the tags that begin with it.

    Every tag has to begin with one of the triggers; of several the first counts.
    """
    heads = [f"head_{number}[lazy]: TEXT {quoted(trigger)}" for number, trigger in enumerate(triggers)]
    rules = []
    for number, tag in enumerate(tags):
        head = next(place for place, trigger in enumerate(triggers) if tag.begin.startswith(trigger))
        rest = tag.begin[len(triggers[head]) :]
        rules.append(f"tag_{number}: head_{head} {quoted(rest)} json_{number} {quoted(tag.end)}")
    names = " | ".join(f"tag_{number}" for number in range(len(tags)))
    start = f"start: ({names})* rest\nrest: TEXT"
    return "\n".join([start, FREE_TEXT, *heads, *rules, *_schemas(tags), ""])


def calls_only(tags: Sequence[Tagged], *, several: bool, answer: Mapping[str, Any] | None = None) -> str:
    """A grammar of one tag, or with `several` of more, one on a line; or, with `answer`, of JSON of that schema."""
    names = " | ".join(f"tag_{number}" for number in range(len(tags)))
    calls = 'calls: call ("\\n" call)*' if several else "calls: call"
    rules = [
        f"tag_{number}: {quoted(tag.begin)} json_{number} {quoted(tag.end)}".rstrip() for number, tag in enumerate(tags)
    ]
    start = ["start: calls"] if answer is None else ["start: calls | answer", f"answer: %json {json.dumps(answer)}"]
    return "\n".join([*start, calls, f"call: {names}", *rules, *_schemas(tags), ""])


def quoted(text: str) -> str:
    """A string of the notation, which writes them as JSON does; nothing for an empty one."""
    return json.dumps(text) if text else ""


def _schemas(tags: Sequence[Tagged]) -> list[str]:
    # Each is a document of its own, so that references inside it mean what they meant.
    return [f"json_{number}: %json {json.dumps(tag.schema)}" for number, tag in enumerate(tags)]
