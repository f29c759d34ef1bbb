"""Uploads over HTTP: who may, what a request does with one, and that they belong to a key."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import ServerProcess
from support.wasm import NO_REPEATS, wat

from fastdeploy_lp.entrypoints.openai.uploads.store import UploadStore

ALICE, BOB, CAROL, OPERATOR = "alice-key", "bob-key", "carol-key", "operator-key"
PATH = "/v1/logits_processors"
SECONDS = 300.0
BIAS = {"name": "LogitBiasLogitsProcessor", "params": {"logit_bias": {"9": 1000.0}}}


@dataclass
class Store:
    """A folder of uploads of an earlier server: the names of one that is as it was and of one that was changed."""

    folder: Path
    kept: str
    spoilt: str


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder, owner = tmp_path_factory.mktemp("uploads"), sha256(CAROL.encode()).hexdigest()
    earlier = UploadStore(str(folder))
    kept, spoilt = (earlier.add(owner, label, NO_REPEATS.read_bytes()).name for label in ("kept", "spoilt"))
    (file,) = folder.glob(f"*/{spoilt}.wasm")
    file.write_bytes(file.read_bytes() + b"\0\1\0")
    return Store(folder, kept, spoilt)


@pytest.fixture(scope="module")
def uploads(tiny_checkpoint: Path, store: Store) -> Iterator[ServerProcess]:
    keys = ["--api-key", ALICE, BOB, CAROL, "--admin-api-key", OPERATOR]
    options = [*keys, "--allow-uploads", "--upload-store", str(store.folder)]
    model = str(tiny_checkpoint)
    with ServerProcess(*options, "--logits-processors", "LogitBiasLogitsProcessor", model=model) as running:
        yield running


def client(server: ServerProcess, key: str | None) -> httpx.Client:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=SECONDS)


def upload(http: httpx.Client, content: bytes, name: str = "mine", **more: Any) -> httpx.Response:
    return http.post(PATH, json={"name": name, "module": base64.b64encode(content).decode(), **more})


def complete(http: httpx.Client, processors: Any, **more: Any) -> httpx.Response:
    body = {"prompt": [5, 6, 7], "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return http.post("/v1/completions", json={**body, "logits_processors": processors, **more})


def tokens(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def test_an_upload_serves_its_key_and_no_other(uploads: ServerProcess) -> None:
    with client(uploads, ALICE) as alice, client(uploads, BOB) as bob, client(uploads, OPERATOR) as operator:
        card = upload(alice, NO_REPEATS.read_bytes()).json()
        name = card["name"]
        assert card["source"] == "upload"
        assert card["parameters"]["properties"]["penalty"]["maximum"] == 100
        assert str(uploads) not in json.dumps(card)
        assert "/" not in json.dumps(card["spec"])
        again = upload(alice, NO_REPEATS.read_bytes()).json()
        assert (again["name"], again["upload"]) == (name, card["upload"])
        plain, processed = complete(alice, None), complete(alice, {name: {"penalty": 100}})
        assert len(set(tokens(processed))) == 6
        assert tokens(processed) != tokens(plain)
        assert alice.get(f"{PATH}/{name}").json()["name"] == name
        assert [each["name"] for each in alice.get(PATH).json()["data"]] == ["LogitBiasLogitsProcessor", name]
        # Another key neither sees nor uses nor deletes it, and cannot tell that it exists.
        for other in (bob, operator):
            assert [each["name"] for each in other.get(PATH).json()["data"]] == ["LogitBiasLogitsProcessor"]
            assert other.get(f"{PATH}/{name}").status_code == 404
            unknown = complete(other, {name: {"penalty": 100}})
            absent = complete(other, {"mine_0123456789abcdef": {"penalty": 100}})
            assert unknown.status_code == absent.status_code == 400
            assert unknown.text.replace(name, "") == absent.text.replace("mine_0123456789abcdef", "")
            assert other.delete(f"{PATH}/{name}").status_code == 404
        # The same content of another key is another upload.
        twin = upload(bob, NO_REPEATS.read_bytes()).json()["name"]
        assert twin != name
        assert bob.delete(f"{PATH}/{twin}").json() == {
            "name": twin,
            "object": "logits_processor.deleted",
            "deleted": True,
        }
        assert complete(bob, {twin: {}}).status_code == 400
        assert tokens(complete(alice, {name: {"penalty": 100}})) == tokens(processed)


def test_an_upload_takes_any_place_in_an_order(uploads: ServerProcess) -> None:
    with client(uploads, ALICE) as alice:
        name = upload(alice, NO_REPEATS.read_bytes(), "ordered").json()["name"]
        mine = {"name": name, "params": {"penalty": 100}}
        first, last = tokens(complete(alice, [mine, BIAS])), tokens(complete(alice, [BIAS, mine]))
        assert first == last == [9] * 6
        streamed = complete(alice, [mine, BIAS], stream=True)
        assert streamed.status_code == 200
        assert "[DONE]" in streamed.text
        asked = {"prompt": [5], "max_tokens": 2, "logits_processors": [mine, BIAS], "logits_processors_trace": {}}
        stages = alice.post("/v1/completions", json=asked).json()["choices"][0]["logits_processors_trace"]
        assert name in json.dumps(stages)


def test_parameters_are_checked_by_the_schema_and_by_the_module(uploads: ServerProcess) -> None:
    fails = wat(
        init="(call $fail (i32.const 400) (i32.const 10)) (i32.const 0)",
        imports='(import "fastdeploy_lp" "fail" (func $fail (param i32 i32)))',
        more='(data (i32.const 400) "not a word")',
    )
    with client(uploads, ALICE) as alice:
        name = upload(alice, NO_REPEATS.read_bytes()).json()["name"]
        wrong = complete(alice, {name: {"penalty": 101}}).json()["error"]
        assert wrong["param"] == f"logits_processors.{name}.penalty"
        assert "less than or equal to 100" in wrong["message"]
        unknown = complete(alice, [{"name": name, "params": {"penally": 1}}]).json()["error"]
        assert unknown["param"] == "logits_processors.0.params.penally"
        refuses = upload(alice, fails, "refuses").json()["name"]
        refused = complete(alice, {refuses: {}})
        assert refused.status_code == 400
        assert "not a word" in refused.json()["error"]["message"]
        shadowed = complete(alice, [{"name": name, "shadow": True}])
        assert shadowed.status_code == 400
        assert "only declared processors can run in shadow" in shadowed.text


def test_a_form_uploads_a_file_with_its_schema(uploads: ServerProcess) -> None:
    with client(uploads, ALICE) as alice:
        schema = {"properties": {"x": {"type": "integer", "minimum": 1}}}
        about = {"parameters": json.dumps(schema), "description": "By a form.", "max_rewind": "2"}
        fields = {"name": "formed", **about}
        card = alice.post(PATH, data=fields, files={"module": ("m.wasm", wat(), "application/wasm")}).json()
        assert card["description"] == "By a form."
        assert complete(alice, {card["name"]: {"x": 0}}).status_code == 400
        assert complete(alice, {card["name"]: {"x": 1}}).status_code == 200
        assert alice.post(PATH, content=b"x", headers={"Content-Type": "multipart/form-data"}).status_code == 400


def body_of(content: bytes, **more: Any) -> dict[str, Any]:
    return {"name": "mine", "module": base64.b64encode(content).decode(), **more}


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ({"name": "mine"}, "module", "Field required"),
        (body_of(wat(), name="Mine"), "name", "should match pattern"),
        ({"name": "mine", "module": "?"}, "module", "no base64"),
        (body_of(b"hello"), "module", "is no WebAssembly module"),
        (body_of(bytes((1 << 20) + 1)), "module", "at most 1048576"),
        (body_of(wat()[:-3]), "module", "is no valid WebAssembly"),
        (body_of(wat(), parameters={"type": "array"}), "parameters", "an object"),
        (body_of(wat(imports='(import "wasi" "x" (func))')), "module", "imports wasi.x"),
        (body_of(NO_REPEATS.read_bytes(), description="Mine."), "description", "has its own section"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_an_upload_is_named(uploads: ServerProcess, body: Any, param: str, reason: str) -> None:
    with client(uploads, BOB) as bob:
        answer = bob.post(PATH, json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert reason in answer.json()["error"]["message"]


def test_a_fault_of_an_upload_ends_its_request_alone(uploads: ServerProcess) -> None:
    traps = wat("(if (i32.eqz (local.get 1)) (then (return (i32.const 0)))) (unreachable)")
    with client(uploads, ALICE) as alice, client(uploads, BOB) as bob:
        bad = upload(alice, traps, "traps").json()["name"]
        good = upload(bob, NO_REPEATS.read_bytes()).json()["name"]
        for _ in range(3):
            failed = complete(alice, {bad: {}})
            assert failed.status_code == 500
            assert "executed `unreachable`" in failed.json()["error"]["message"]
            assert len(set(tokens(complete(bob, {good: {"penalty": 100}})))) == 6
        assert alice.get(f"{PATH}/{bad}").json()["counters"]["faults"] == 3
        assert alice.post(f"{PATH}/{bad}/reset").status_code == 403
        with client(uploads, OPERATOR) as operator:
            assert operator.post(f"{PATH}/{bad}/reset").json()["state"] == "ok"
        metrics = httpx.get(uploads.metrics_url).text
        assert bad not in metrics
        assert 'logits_processor_faults_total{processor="(uploads)"} 3.0' in metrics


def test_uploads_survive_a_restart_in_their_store_unless_they_were_changed(
    uploads: ServerProcess, store: Store
) -> None:
    with client(uploads, CAROL) as carol:
        names = [each["name"] for each in carol.get(PATH).json()["data"]]
        assert store.kept in names
        assert store.spoilt not in names
        assert len(set(tokens(complete(carol, {store.kept: {"penalty": 100}})))) == 6
        assert f"{store.spoilt}.wasm is left out" in uploads.log
        # This server keeps its own in the same place, which the next one reads.
        new = upload(carol, wat(), "new").json()["name"]
        again = UploadStore(str(store.folder))
        assert set(again.specs_of(sha256(CAROL.encode()).hexdigest())) == {store.kept, new}
    assert all(path.stat().st_mode & 0o077 == 0 for path in store.folder.glob("*/*.wasm"))


def test_a_server_takes_no_uploads_unless_it_is_told(light_server: ServerProcess) -> None:
    with client(light_server, None) as anyone:
        refused = upload(anyone, wat())
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "uploads_not_allowed"
        assert anyone.get(PATH).json()["takes_uploads"] is False
        assert anyone.delete(f"{PATH}/x").status_code == 403
        assert os.path.basename(PATH) == "logits_processors"
