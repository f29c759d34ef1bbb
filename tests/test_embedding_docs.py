"""docs/embeddings.md against the code: its programs are run as they are printed, but for the port."""

from __future__ import annotations

import re

from support.printed_program import printed_by
from support.server import REPOSITORY, ServerProcess

from fastdeploy_lp.entrypoints.openai.protocol.embedding import EmbeddingRequest
from fastdeploy_lp.request.pooling_params import EMBED, POOLING_TASKS, PoolingParams

DOCUMENT = (REPOSITORY / "docs" / "embeddings.md").read_text()
PRINTED_URL = "http://127.0.0.1:8180"


def program_with(text: str) -> str:
    (found,) = [block for block in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL) if text in block]
    return str(found)


def test_no_block_of_code_is_left_out_of_these_tests() -> None:
    assert DOCUMENT.count("```") == 2 * 3


def test_the_openai_program_runs(server: ServerProcess) -> None:
    program = program_with("openai.Client").replace(PRINTED_URL, server.url)
    count, size, tokens = printed_by(program).split()
    assert (count, size) == ("3", "576")
    assert int(tokens) > 3


def test_the_rerank_program_finds_the_kitten(server: ServerProcess) -> None:
    assert printed_by(program_with("v1/rerank").replace(PRINTED_URL, server.url)) == "[1, 0]\n"


def test_the_offline_program_runs() -> None:
    size, tokens = printed_by(program_with("LLM(")).split()
    assert size == "64"
    assert int(tokens) > 1


def test_every_field_is_documented_and_every_parameter_is_a_field() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE)
    assert sorted(documented) == sorted(EmbeddingRequest.model_fields)
    assert {*PoolingParams.__struct_fields__} - {"task"} <= set(documented)
    assert all(f'PoolingParams(task="{task}")' in DOCUMENT for task in POOLING_TASKS if task != EMBED)
