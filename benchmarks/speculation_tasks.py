"""Tasks of `speculation.py`: what is asked, and the ratios of tokens per second to reach."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams

DATA = Path(__file__).parent / "data"
TEXTS = (
    "The lighthouse stands on a rock two miles from the harbour. It was built in 1871 by a company of forty men, who "
    "carried every stone over the sea in small boats. The lamp burned oil until 1923, when the first electric light "
    "was installed. Today nobody lives there, but a boat brings visitors every Sunday in summer, if the sea is calm.",
    "Dear Ms Becker, thank you for your order of 12 March. The two lamps were sent today and will arrive on Friday. "
    "Please check the parcel when it arrives and tell us within a week if anything is missing or broken.",
    "Wash the potatoes and boil them for twenty minutes. Peel them while they are warm and cut them into slices. Mix "
    "oil, vinegar, salt and a little mustard, and pour it over the potatoes. Serve the salad after one hour.",
    "The museum is open from Tuesday to Sunday between 10:00 and 18:00. Tickets cost 8 euros for adults and 4 euros "
    "for children. Guided tours in English start every day at 14:30 at the main entrance.",
)
# A word of each text that its answer must not have.
REPLACED = ("harbour", "parcel", "potatoes", "museum")
CODES = (
    "def price(items, tax):\n    total = 0\n    for item in items:\n        total = total + item.price * item.count\n"
    "        if item.discount:\n            total = total - item.discount\n    total = total + total * tax\n"
    "    return total\n",
    "def average(values):\n    total = 0\n    count = 0\n    for value in values:\n        total = total + value\n"
    "        count = count + 1\n    if count == 0:\n        return 0\n    return total / count\n",
    "class Account:\n    def __init__(self, owner):\n        self.owner = owner\n        self.total = 0\n\n"
    "    def deposit(self, value):\n        self.total = self.total + value\n\n"
    "    def withdraw(self, value):\n        if value > self.total:\n            raise ValueError(value)\n"
    "        self.total = self.total - value\n",
)
PEOPLE = (
    ("Margaret Okonkwo", "Senior Structural Engineer", "Northern Bridges Limited", "margaret.okonkwo@bridges.example"),
    ("Alexander Lindqvist", "Head of Procurement", "Scandinavian Paper Company", "a.lindqvist@paper.example"),
    ("Catherine Dubois", "Regional Sales Manager", "Lavender Fields Cosmetics", "catherine@lavender.example"),
)
CHATS = (
    "Tell me a story about a fox who lives near a river.",
    "Why is the sky blue?",
    "Give me three tips for learning a language.",
    "What should I see in Rome in one day?",
)
# Of a context of about 1,000 tokens.
CONTEXT_LETTERS = 4000
ANSWER_TOKENS = 128
LONG = "1,000 tokens"
"""In names of tasks whose prompts take most of the time."""


@dataclass(frozen=True)
class Prompt:
    """A user's message, and the parameters of its answer."""

    text: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """Prompts, and the ratios that they must reach together by number of requests at a time."""

    name: str
    prompts: tuple[Prompt, ...]
    musts: dict[int, float]


def tasks() -> list[Task]:
    """Returns all tasks."""
    copying, keys, free = {1: 1.8, 8: 1.4}, {1: 1.5}, {1: 0.98, 8: 0.98, 32: 0.98}
    quote = "Repeat this text exactly, with no changes:\n\n"
    context = (DATA / "quality" / "prose.txt").read_text()[:CONTEXT_LETTERS]
    return [
        Task("quote", tuple(Prompt(quote + text) for text in TEXTS), copying),
        Task(f"quote, {LONG}", tuple(Prompt(f"{context}\n\n{quote}{text}") for text in TEXTS), copying),
        Task("reword", tuple(_reword(quote, *each) for each in zip(TEXTS, REPLACED, strict=True)), copying),
        Task("edit", tuple(_edit(code) for code in CODES), copying),
        Task("extract", tuple(_extract(*person) for person in PEOPLE), copying),
        Task("schema", tuple(_schemas()), keys),
        Task("function call", tuple(_calls()), keys),
        Task("chat", tuple(Prompt(text) for text in CHATS), free),
        Task(f"chat, {LONG}", tuple(Prompt(f"{context}\n\n{text}") for text in CHATS), free),
    ]


def _reword(quote: str, text: str, word: str) -> Prompt:
    """Returns a quote in which another word must replace one: an edit that also the default model makes."""
    return Prompt(quote + text, {"prediction": text, "bad_words": [word]})


def _edit(code: str) -> Prompt:
    return Prompt(f"Rename total to amount in this code:\n\n```python\n{code}```", {"prediction": code})


def _extract(name: str, position: str, company: str, address: str) -> Prompt:
    text = f"{name} has worked as {position} at {company} since 2014. Her or his address is {address}."
    names = ("full_name", "job_title", "company_name", "email_address")
    return Prompt(f"{text}\n\nWrite {', '.join(names)} of this person as JSON.", _guided(_strings(names)))


def _strings(names: tuple[str, ...]) -> dict[str, Any]:
    properties = {name: {"type": "string", "maxLength": 40} for name in names}
    return {"type": "object", "properties": properties, "required": list(names), "additionalProperties": False}


def _guided(schema: dict[str, Any]) -> dict[str, Any]:
    return {"guided_decoding": GuidedDecodingParams(json=schema)}


def _schemas() -> Iterator[Prompt]:
    for line in (DATA / "object_schemas.jsonl").read_text().splitlines():
        found = json.loads(line)
        yield Prompt(found["ask"], _guided(found["schema"]))


def _calls() -> Iterator[Prompt]:
    """Yields requests for one function, in the form in which models write calls."""
    for line in (DATA / "function_calls.jsonl").read_text().splitlines():
        found = json.loads(line)
        call = {
            "type": "object",
            "properties": {"name": {"const": found["name"]}, "arguments": found["parameters"]},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        yield Prompt(f"Call {found['name']} for this request: {found['ask']}", _guided(call))
