"""docs/guided-decoding.md: its code runs, and it names every field."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from support.printed_program import printed_by
from support.server import DEFAULT_MODEL, REPOSITORY, ServerProcess

from fastdeploy_lp.entrypoints.openai.protocol.guided import KINDS, GuidedRequest
from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest
from fastdeploy_lp.request.guided_decoding import GuidedDecodingParams

DOCUMENT = (REPOSITORY / "docs" / "guided-decoding.md").read_text()


def code_block(language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    return str(block)


def test_the_program_prints_one_of_its_choices(light_checkpoint: Path) -> None:
    """Whatever the model makes of the question."""
    program = code_block("python").replace(DEFAULT_MODEL, str(light_checkpoint))
    assert printed_by(program).strip() in ("positive", "negative")


def test_the_curl_line_gives_a_person(server: ServerProcess) -> None:
    environment = {**os.environ, "SERVER": server.url}
    done = subprocess.run(["bash", "-ec", code_block("bash")], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    person = json.loads(json.loads(done.stdout)["choices"][0]["message"]["content"])
    assert set(person) == {"name", "age"}
    assert 0 <= person["age"] <= 120


def test_every_field_is_there() -> None:
    table = DOCUMENT.partition("| field |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| (.*?) \| `(\w+)` \|", table, re.MULTILINE))
    assert set(rows.values()) == set(KINDS.values())
    assert all(f"`{field}`" in DOCUMENT for field in GuidedDecodingParams.__struct_fields__)
    for cell, own in rows.items():
        (name,) = [name for name, kind in KINDS.items() if kind == own]
        assert f"`{name}`" in cell
    fields = set(GuidedRequest.model_fields) - set(GenerationRequest.model_fields)
    assert {*KINDS, "response_format"} <= fields
    assert all(f"`{field}`" in DOCUMENT for field in fields)
