"""Promises of SECURITY.md that have no test of their own elsewhere, and that each of them has one."""

from __future__ import annotations

import ast
import dataclasses
import hmac
import json
import pickle
import re
import socket
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.chat import HELLO, post
from support.errors import check_error
from support.server import REPOSITORY, ServerProcess
from support.tiny import write_tiny_checkpoint

import fastdeploy_lp
from fastdeploy_lp import LLM, SamplingParams
from fastdeploy_lp.entrypoints.openai.middleware.authentication import AuthenticationMiddleware
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.startup.engine_args import EngineArgs

PACKAGE = Path(fastdeploy_lp.__file__).parent
PAGE = (REPOSITORY / "SECURITY.md").read_text()
PROMISE = re.compile(r"^\| \*\*([a-z-]+)\*\*: .* \| (.*) \|$", re.MULTILINE)
EVALUATORS = {"eval", "exec", "compile", "__import__"}
PICKLERS = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# The two ends of the pipe from the API process to its worker.
MAY_PICKLE = {
    "engine/client/engine_client.py": "dumps",
    "engine/helpers/trials.py": "dumps",
    "engine/helpers/trial_process.py": "loads",
    "worker/process.py": "loads",
}
READS_ARRAYS = "checkpoint/pdparams.py"
PICKLED_ELSEWHERE = re.compile(r"(send|recv)_pyobj|allow_pickle=True|\b(paddle|torch|np|numpy)\.load\(|read_pickle")
ROOTS = [
    "../../../../etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "a/../b",
    "\\\\x\\y",
]


def sources() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def tree_with(source: str, names: Collection[str]) -> ast.Module:
    """The parsed source, or an empty one if it has none of these names anywhere: to parse all takes seconds."""
    return ast.parse(source if any(name in source for name in names) else "")


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def imported(tree: ast.AST) -> set[str]:
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


# The page itself


def test_every_promise_has_its_tests(request: pytest.FixtureRequest) -> None:
    promises = PROMISE.findall(PAGE)
    assert len(promises) >= 15
    assert len({name for name, _ in promises}) == len(promises)
    assert len(promises) == PAGE.count("| **")
    collected = {item.nodeid.partition("[")[0] for item in request.session.items}
    files = {nodeid.partition("::")[0] for nodeid in collected}
    for name, held_by in promises:
        tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", held_by)
        assert tests, name
        assert held_by == ", ".join(f"`{file}::{test}`" for file, test in tests), name
        for file, test in tests:
            (function,) = [
                node for node in parsed(file).body if isinstance(node, ast.FunctionDef) and node.name == test
            ]
            assert not any("mark.skip(" in ast.unparse(each) for each in function.decorator_list), test
            # Where the file was collected, as in a whole run, the test is among what is run.
            assert file not in files or f"{file}::{test}" in collected or not whole_files(request, file)


@cache
def parsed(file: str) -> ast.Module:
    return ast.parse((REPOSITORY / file).read_text())


def whole_files(request: pytest.FixtureRequest, file: str) -> bool:
    """Whether all of a file was asked for, and no single test of it."""
    return not any("::" in each or each.startswith("-k") for each in request.config.invocation_params.args)


# No pickle, no code


def test_pickles_only_pass_the_workers_own_pipe() -> None:
    for path, source in sources().items():
        tree = tree_with(source, PICKLERS)
        used = {
            f"{call.func.attr}"
            for call in calls(tree)
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in PICKLERS
        }
        if path == READS_ARRAYS:
            # The names that its pickles may hold are a list, which tests/checkpoint/test_pdparams.py tries to pass.
            assert imported(tree) & PICKLERS == {"pickle"}, path
            assert not used, path
            assert "class _ArraysOnly(pickle._Unpickler)" in source
        elif path in MAY_PICKLE:
            assert imported(tree) & PICKLERS == {"cloudpickle"}, path
            assert used == {MAY_PICKLE[path]}, path
        else:
            assert not imported(tree) & PICKLERS, path
        assert not PICKLED_ELSEWHERE.search(source), path
    assert (
        "cloudpickle.loads(data) for spec, data in self._start.pickled_processors.items()"
        in (PACKAGE / "worker" / "process.py").read_text()
    )


def test_no_text_is_evaluated() -> None:
    for path, source in sources().items():
        named = {call.func.id for call in calls(tree_with(source, EVALUATORS)) if isinstance(call.func, ast.Name)}
        assert not named & EVALUATORS, path
        assert "yaml.load(" not in source, path
        assert "shell=True" not in source, path


class Touches:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_code_beside_a_model_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "model").mkdir()
    model = write_tiny_checkpoint(tmp_path / "model")
    code = f"open({str(marker)!r}, 'w').close()\nclass Evil: pass\n"
    for name in (
        "modeling_evil.py",
        "tokenization_evil.py",
        "configuration_evil.py",
        "__init__.py",
        "sitecustomize.py",
    ):
        (model / name).write_text(code)
    for name in ("pytorch_model.bin", "model.pt", "tokenizer.pkl", "model_state.pdparams"):
        (model / name).write_bytes(pickle.dumps(Touches(marker)))
    auto_map = {"AutoModelForCausalLM": "modeling_evil.Evil", "AutoTokenizer": ["tokenization_evil.Evil", None]}
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({**content, "auto_map": auto_map, "trust_remote_code": True}))
    with LLM(str(model)) as llm:
        assert llm.chat(HELLO, SamplingParams(max_tokens=1), use_tqdm=False)
    assert not marker.exists()
    pickle.loads(pickle.dumps(Touches(marker)))
    assert marker.exists()


def test_no_option_lets_a_model_bring_code() -> None:
    options = {field.name for kind in (EngineArgs, ServerArgs) for field in dataclasses.fields(kind)}
    assert not [
        name for name in options if "remote" in name or ("trust" in name and name != "trust_request_chat_template")
    ]


# Clients


@pytest.mark.parametrize("name", ROOTS)
def test_no_name_of_a_client_is_a_path(server: ServerProcess, name: str) -> None:
    answers = [
        post(server, {"messages": HELLO, "max_tokens": 1, "model": name}),
        httpx.get(f"{server.url}/v1/models/{name}"),
        httpx.post(f"{server.url}/v1/logits_processors/{name}/reset"),
        httpx.get(f"{server.url}/{name}"),
    ]
    for answer in answers:
        assert check_error(answer, 404)["code"] in ("model_not_found", "logits_processor_not_found", "unknown_url")
        assert "root:" not in answer.text


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /%0d%0aX-Forged:%20yes HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\rX-Forged: yes\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\xc4\x8d\xc4\x8aX-Forged: yes\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: a%0d%0aX-Forged: yes\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\x85X-Forged: yes\r\n\r\n",
        b"GET /v1/models/\xe2\x80\xa8X-Forged: HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: a\r\n\r\n",
    ],
)
def test_no_client_can_add_a_header_or_a_line(server: ServerProcess, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(request_bytes)
        answer = connection.recv(1 << 16)
    head = answer.partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 ")
    assert not [line for line in re.split(rb"[\r\n]", head)[1:] if line.lower().startswith(b"x-forged")]
    assert not [line for line in server.log.splitlines() if line.startswith("X-Forged")]


@pytest.mark.parametrize("forged", ["a\r\nX-Forged: yes", "a\nX-Forged: yes", "a\u2028X-Forged: yes", "\x1b[2Ja"])
def test_no_body_can_add_a_header_or_a_line(server: ServerProcess, forged: str) -> None:
    for field in ({"request_id": forged}, {"model": forged}, {forged: 1}, {"user": forged, "temperature": 9e9}):
        answer = post(server, {"messages": HELLO, "max_tokens": 1, **field})
        assert answer.status_code in (400, 404)
        assert "x-forged" not in answer.headers
        assert re.fullmatch(r"[\w.-]+", answer.headers["x-request-id"])
    assert "\x1b" not in server.log
    assert not [line for line in server.log.splitlines() if line.startswith("X-Forged")]


def test_answers_say_what_they_are_and_not_by_whom(server: ServerProcess) -> None:
    for answer in (httpx.get(f"{server.url}/v1/models"), httpx.get(f"{server.url}/nowhere"), post(server, b"{")):
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers


def test_templates_of_requests_are_refused_unless_trusted(server: ServerProcess) -> None:
    error = check_error(post(server, {"messages": HELLO, "chat_template": "x"}), 400)
    assert error["param"] == "chat_template"
    assert "--trust-request-chat-template" in error["message"]


@pytest.mark.parametrize("header", [b"", b"Bearer ", b"Bearer one", b"Bearer two", b"one", b"Bearer " + b"x" * 10_000])
def test_keys_are_compared_by_digests_in_constant_time(header: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    whole = hmac.compare_digest

    def spy(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return whole(one, other)

    monkeypatch.setattr(hmac, "compare_digest", spy)

    async def nobody(*_: Any) -> None:
        """Behind the keys."""

    middleware = AuthenticationMiddleware(nobody, ["one", "three"])
    for name in (b"authorization", b"x-api-key"):
        place = middleware._place_of_key({"headers": [(name, header)]})
        fitting = b"Bearer one" if name == b"authorization" else b"one"
        assert place == (0 if header == fitting else None)
    # All keys with both headers, always, and texts of one length, whatever came.
    assert len(compared) == 2 * 2 * 2
    assert {len(text) for pair in compared for text in pair} == {32}
