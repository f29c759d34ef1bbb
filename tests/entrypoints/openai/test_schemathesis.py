"""Generated calls for everything in /openapi.json: no status of 500 or more, and every answer as its schema says.

Some hundred calls by default; FASTDEPLOY_LP_SCHEMATHESIS_CALLS asks for more.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.chat import HELLO, post
from support.server import ServerProcess

CALLS = int(os.environ.get("FASTDEPLOY_LP_SCHEMATHESIS_CALLS", "110"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
OPERATIONS = {
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "GET /v1/responses/{response_id}",
    "DELETE /v1/responses/{response_id}",
    "POST /v1/responses/{response_id}/cancel",
    "GET /v1/responses/{response_id}/input_items",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "POST /v1/score",
    "POST /pooling",
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/abort_requests",
    "GET /v1/logits_processors",
    "POST /v1/logits_processors",
    "GET /v1/logits_processors/{name}",
    "DELETE /v1/logits_processors/{name}",
    "POST /v1/logits_processors/{name}/reset",
    "GET /v1/models",
    "GET /v1/models/{model_id}",
    "GET /health",
    "GET /health/live",
    "GET /health/ready",
    "GET /ping",
    "POST /ping",
    "GET /load",
    "GET /version",
    "GET /metrics",
}
# A call without a body cannot be varied much; those with one get what is left of the number.
WITH_BODY = 11
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture(scope="module")
def quick_server(tiny_checkpoint: Path) -> Iterator[ServerProcess]:
    """A context so short that no generated request takes long."""
    options = ["--logits-processors", "LogitBiasLogitsProcessor", "--max-model-len", "64"]
    with ServerProcess(*options, model=str(tiny_checkpoint), own_metrics_port=False) as running:
        yield running


@pytest.fixture(scope="module")
def operations(quick_server: ServerProcess) -> list[Any]:
    schema = schemathesis.openapi.from_url(f"{quick_server.url}/openapi.json")
    return [found.ok() for found in schema.get_all_operations()]


def test_every_generated_call_is_answered_as_declared(quick_server: ServerProcess, operations: list[Any]) -> None:
    assert {operation.label for operation in operations} == OPERATIONS
    statuses: Counter[int] = Counter()
    for operation in operations:
        for mode in MODES if can_be_wrong(operation) else MODES[:1]:
            statuses += called(operation, mode, examples=CALLS // (WITH_BODY * len(MODES)))
    assert sum(statuses.values()) >= CALLS, statuses
    assert statuses[200] > CALLS // 20, statuses
    assert statuses[400] > CALLS // 20, statuses
    assert "Traceback" not in quick_server.log
    assert post(quick_server, {"messages": HELLO, "max_tokens": 1}).status_code == 200


def can_be_wrong(operation: Any) -> bool:
    """Whether a call can differ from its schema: any text is right in a path, of which hundreds would be tried."""
    return bool(operation.body or operation.query)


def called(operation: Any, mode: GenerationMode, examples: int) -> Counter[int]:
    """Calls an operation so often, with other values each time, and counts the statuses of its answers."""
    statuses: Counter[int] = Counter()

    @settings(max_examples=examples, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Any) -> None:
        answer = case.call()
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    call()
    return statuses
