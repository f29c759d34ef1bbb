"""Instructor's objects from answers: by tools, by a JSON Schema, and by responses.

Reads where the server is from standard input; prints the objects, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict

PLAN = json.load(sys.stdin)
MODES = {
    "tools": instructor.Mode.TOOLS,
    "json schema": instructor.Mode.JSON_SCHEMA,
    "responses": instructor.Mode.RESPONSES_TOOLS,
}


class Person(BaseModel):
    """So bounded that any model fills it, and adds nothing."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["Ann", "Bob"]
    age: Literal[1, 2]


def found(mode: instructor.Mode) -> Person:
    """The object that a mode finds, at the first try."""
    server = openai.OpenAI(base_url=f"{PLAN['url']}/v1", api_key=PLAN["key"], max_retries=0)
    client = instructor.from_openai(server, mode=mode)
    messages = [{"role": "user", "content": "Ann is 2."}]
    person = client.chat.completions.create(
        model=PLAN["model"],
        response_model=Person,
        messages=messages,
        max_retries=0,
        temperature=0,
        extra_body={"guided_when": {"after_tokens": 0}},
    )
    return Person.model_validate(person.model_dump())


print(json.dumps({name: found(mode).model_dump() for name, mode in MODES.items()}))
