"""What a file must be to run: its interface, its section about itself, and the schema of its arguments."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import wasmtime
from pydantic import ValidationError
from support.wasm import BUILT, NO_COMPILER, NO_REPEATS, ROOT, TOP_GAP, compile_c, wat

from fastdeploy_lp.logits_processor import LogitsProcessorSpecError, load_processors
from fastdeploy_lp.logits_processor.token_arguments import VOCAB_SIZE
from fastdeploy_lp.logits_processor.wasm.binary import custom_sections
from fastdeploy_lp.logits_processor.wasm.errors import WasmError
from fastdeploy_lp.logits_processor.wasm.module import WasmModule, with_section
from fastdeploy_lp.logits_processor.wasm.schema import model_of
from fastdeploy_lp.logits_processor.wasm.signatures import ModuleTypes, Signature

MEMORY = '(memory (export "memory") 1)'
BAD = {
    "(module)": "does not export its memory",
    f"(module {MEMORY})": r"does not export lp_alloc, a function \(i32\) -> \(i32\)",
    f'(module {MEMORY} (func (export "lp_alloc")))': "exports lp_alloc with another type",
    '(module (import "wasi_snapshot_preview1" "fd_write" (func)))': r"imports wasi_snapshot_preview1.fd_write, which",
    '(module (import "fastdeploy_lp" "fail" (func)))': r"imports fastdeploy_lp.fail with other types",
    '(module (import "env" "memory" (memory 1)))': r"imports env.memory",
    '(module (import "fastdeploy_lp" "fail" (memory 1 2)))': r"imports fastdeploy_lp.fail with other types",
    '(module (import "fastdeploy_lp" "fail" (table 1 2 funcref)))': r"imports fastdeploy_lp.fail with other types",
    # wasmtime ends the process if it is asked for these types.
    '(module (import "fastdeploy_lp" "fail" (func (param v128))))': r"imports fastdeploy_lp.fail with other types",
    '(module (import "fastdeploy_lp" "fail" (global v128)))': r"imports fastdeploy_lp.fail with other types",
    f'(module {MEMORY} (func (export "lp_alloc") (param v128) (result i32) i32.const 0))': "exports lp_alloc with",
    '(module (global (export "memory") v128 (v128.const i64x2 0 0)))': "does not export its memory",
    "(module (memory 1) (memory 1))": "is no valid WebAssembly",
    "(module (memory 1 1 shared))": "is no valid WebAssembly",
    "(module (memory i64 1))": "is no valid WebAssembly",
    f'(module {MEMORY} (func (export "a") {"drop " * 3}))': "is no valid WebAssembly",
}


def declared(content: bytes, folder: Path, name: str = "mine") -> Any:
    path = folder / f"{name}.wasm"
    path.write_bytes(content)
    return load_processors([str(path)])[0]


@pytest.mark.parametrize("text", BAD)
def test_a_module_without_the_interface_is_refused_at_the_start(text: str, tmp_path: Path) -> None:
    with pytest.raises(LogitsProcessorSpecError, match=BAD[text]):
        declared(bytes(wasmtime.wat2wasm(text)), tmp_path)


def test_a_module_has_one_step(tmp_path: Path) -> None:
    both = '(func (export "lp_step_logits") (param i32 i32 i32) (result i32) (i32.const 0))'
    with pytest.raises(LogitsProcessorSpecError, match="it exports both"):
        declared(wat(more=both), tmp_path)


def test_vector_types_are_allowed_where_the_server_does_not_look(tmp_path: Path) -> None:
    vectors = """(func (export "twice") (param v128) (result v128) (i32x4.add (local.get 0) (local.get 0)))
        (global (export "zero") v128 (v128.const i64x2 0 0))"""
    assert declared(wat(more=vectors), tmp_path).name == "mine"


@pytest.mark.parametrize("path", [NO_REPEATS, TOP_GAP])
def test_signatures_are_those_that_wasmtime_finds(path: Path) -> None:
    content = path.read_bytes()
    found, module = ModuleTypes.of(content), wasmtime.Module(wasmtime.Engine(), content)
    wanted = {each.name: signature_of(each.type) for each in module.exports}
    assert {name: each.signature for name, each in found.exports.items()} == wanted
    imported = [(each.module, each.name, signature_of(each.type)) for each in module.imports]
    assert [(each.module, each.name, each.signature) for each in found.imports] == imported


def signature_of(kind: object) -> Signature | None:
    if not isinstance(kind, wasmtime.FuncType):
        return None
    return Signature(tuple(map(str, kind.params)), tuple(map(str, kind.results)))


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\0asm", "another head"), (b"hello", "another head"), (b"\0asm\x01\0\0\0" + bytes(8 << 20), "larger than")],
)
def test_a_file_that_is_no_module_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(LogitsProcessorSpecError, match=reason):
        declared(content, tmp_path)
    with pytest.raises(LogitsProcessorSpecError, match="cannot be read: No such file"):
        load_processors([str(tmp_path / "absent.wasm")])


def test_a_declared_module_has_the_files_name_and_its_own_description(tmp_path: Path) -> None:
    about = {"description": "Does it.", "parameters": {"properties": {"x": {"type": "integer", "default": 2}}}}
    found = declared(wat(about=about), tmp_path)
    assert (found.name, found.source, found.dialect.name) == ("mine", "file", "wasm")
    assert found.description == "Does it."
    assert found.argument_names == {"x"}
    (other,) = load_processors([f"other={tmp_path / 'mine.wasm'}"])
    assert other.name == "other"


@pytest.mark.parametrize("most", [-1, 1025, True, "2"])
def test_a_module_takes_back_a_bounded_number_of_tokens(most: Any, tmp_path: Path) -> None:
    with pytest.raises(LogitsProcessorSpecError, match="max_rewind must be an integer from 0 to 1024"):
        declared(wat(about={"max_rewind": most}), tmp_path)
    assert declared(wat(about={"max_rewind": 3}), tmp_path).max_rewind == 3


def test_a_schema_may_lie_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({"parameters": {"properties": {"y": {"type": "boolean"}}}}))
    assert declared(wat(), tmp_path).argument_names == {"y"}
    own = declared(wat(about={"parameters": {}}), tmp_path)
    assert own.argument_names == frozenset()


def test_custom_sections_of_damaged_files_end_the_search() -> None:
    whole = with_section(wat(), b"{}")
    assert ("logits_processor", b"{}") in list(custom_sections(whole))
    for length in range(8, len(whole)):
        list(custom_sections(whole[:length]))


SCHEMA = {
    "properties": {
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "share": {"type": "number", "exclusiveMinimum": 0, "default": 0.5, "description": "A share."},
        "word": {"type": ["string", "null"], "maxLength": 3},
        "tokens": {"type": "array", "items": {"type": "integer", "format": "token-id"}, "maxItems": 2},
        "kind": {"enum": ["a", "b"], "default": "a"},
        "more": {"type": "object", "properties": {"on": {"type": "boolean"}}, "additionalProperties": False},
        "biases": {"type": "object", "additionalProperties": {"type": "number"}},
        "model_x": {"type": "string"},
    },
    "required": ["count"],
}
WRONG = [
    {},
    {"count": 0},
    {"count": 10},
    {"count": 1.0},
    {"count": True},
    {"count": "1"},
    {"count": 1, "share": 0},
    {"count": 1, "word": "long"},
    {"count": 1, "tokens": [64]},
    {"count": 1, "tokens": [1, 2, 3]},
    {"count": 1, "kind": "c"},
    {"count": 1, "more": {"off": True}},
    {"count": 1, "biases": {"a": "b"}},
    {"count": 1, "unknown": 1},
]


def test_arguments_are_checked_against_the_schema() -> None:
    model = model_of("mine", SCHEMA)
    given = {"count": 2, "word": None, "tokens": [63], "more": {"on": True}, "biases": {"a": 1}, "model_x": "y"}
    read = model.model_validate(given, context={VOCAB_SIZE: 64}).model_dump(by_alias=True, exclude_unset=True)
    assert read == given
    for wrong in WRONG:
        with pytest.raises(ValidationError):
            model.model_validate(wrong, context={VOCAB_SIZE: 64})
    shown = model.model_json_schema()
    assert shown["properties"]["share"]["description"] == "A share."
    assert shown["required"] == ["count"]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ([], "must be a JSON Schema of an object"),
        ({"type": "array"}, "must be a JSON Schema of an object"),
        ({"properties": {"x": {"type": "string", "pattern": "(a+)+"}}}, "parameters.x.pattern: is not supported here"),
        ({"properties": {"x": {"$ref": "#"}}}, "parameters.x.type: None is none of"),
        ({"properties": {"x": {"type": "array", "items": {"anyOf": []}}}}, "parameters.x.items.type"),
        ({"required": ["x"]}, "parameters.required: 'x' is no property"),
        ({"properties": {"x": {"type": "integer", "minimum": "0"}}}, "parameters.x.minimum: must be a number"),
        ({"properties": {"x": {"type": "string", "format": "date"}}}, "parameters.x.format"),
        ({"properties": {"x": {"enum": []}}}, "parameters.x.enum"),
        ({"properties": {"x": {"type": "string", "title": "x" * 20000}}}, "more than 16384 bytes"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused(schema: Any, reason: str) -> None:
    with pytest.raises(WasmError) as caught:
        model_of("mine", schema)
    assert reason in str(caught.value)


def test_a_nested_schema_has_a_bound() -> None:
    inner: dict[str, Any] = {"type": "integer"}
    for _ in range(10):
        inner = {"type": "array", "items": inner}
    with pytest.raises(WasmError, match="nested more than"):
        model_of("mine", {"properties": {"x": inner}})


@pytest.mark.skipif(NO_COMPILER is not None, reason=str(NO_COMPILER))
@pytest.mark.parametrize("name", ["no_repeats", "top_gap"])
def test_the_examples_compile_to_what_the_tests_use(name: str, tmp_path: Path) -> None:
    made = compile_c(ROOT / "examples" / "wasm" / f"{name}.c", tmp_path / f"{name}.wasm")
    kept = WasmModule.read(BUILT / f"{name}.wasm")
    assert WasmModule.read(made).about == kept.about
    load_processors([str(made)])


def test_a_server_without_wasmtime_says_what_to_install() -> None:
    script = f"""
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "wasmtime" else real(name, *more)
from fastdeploy_lp.logits_processor import load_processors
try:
    load_processors([{str(NO_REPEATS)!r}])
except ValueError as error:
    print(error)
assert "wasmtime" not in sys.modules
"""
    import sys

    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "pip install 'fastdeploy-lp[wasm]'" in ran.stdout
