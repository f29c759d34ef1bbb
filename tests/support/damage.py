"""Models that are damaged in one way each, and what the one line about it has to say."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from support.gguf_model import write_golden_gguf
from support.tiny import write_tiny_checkpoint

MODEL = "tiny-qwen3"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
UP_PROJ = "model.layers.1.mlp.up_proj.weight"
Header = dict[str, Any]


@dataclass(frozen=True)
class Damage:
    """make: damages the model in a folder and gives what `--model` is then. expected: parts of the line.

    found_by: "start" for the API process, before anything is loaded; "load" for the worker.
    """

    make: Callable[[Path], Path | str]
    expected: tuple[str, ...]
    found_by: str = "start"


def _checkpoint(change: Callable[[Path], object]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write_tiny_checkpoint(folder, MODEL)
        change(folder)
        return folder

    return make


def _text(name: str, content: str | bytes) -> Callable[[Path], Path]:
    data = content if isinstance(content, bytes) else content.encode()
    return _checkpoint(lambda folder: (folder / name).write_bytes(data))


def _without(name: str) -> Callable[[Path], Path]:
    return _checkpoint(lambda folder: (folder / name).unlink())


def _config(**fields: Any) -> Callable[[Path], Path]:
    """Entries of config.json; None removes."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text()) | fields
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))

    return _checkpoint(change)


def _tokenizer_model(**fields: Any) -> Callable[[Path], Path]:
    """Entries of the model in tokenizer.json."""

    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        whole = json.loads(path.read_text())
        path.write_text(json.dumps(whole | {"model": whole["model"] | fields}))

    return _checkpoint(change)


def _tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], Path]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return _checkpoint(rewrite)


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def rewrite(folder: Path) -> None:
        path = folder / WEIGHTS
        path.write_bytes(change(path.read_bytes()))

    return _checkpoint(rewrite)


def _header(change: Callable[[Header], object]) -> Callable[[Path], Path]:
    """The header of the safetensors file, with the tensors behind it left as they are."""

    def rewrite(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        found = change(header)
        text = found if isinstance(found, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return _bytes(rewrite)


def _twice(header: Header) -> bytes:
    text = json.dumps(header)
    return f'{text[:-1]}, "{UP_PROJ}": {json.dumps(header[UP_PROJ])}}}'.encode()


def _shift(header: Header) -> None:
    begin, end = header[UP_PROJ]["data_offsets"]
    header[UP_PROJ]["data_offsets"] = [begin - 4, end - 4]


def _past_the_end(header: Header) -> None:
    last = max((entry for entry in header.values() if "dtype" in entry), key=lambda entry: entry["data_offsets"][1])
    last["data_offsets"] = [10**15, 10**15 + last["data_offsets"][1] - last["data_offsets"][0]]


def _index(weight_map: Any) -> Callable[[Path], Path]:
    return _text(INDEX, json.dumps({"weight_map": weight_map}))


def _in_two_shards(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    for number in range(2):
        save_file(tensors, folder / f"model-{number}.safetensors")


def _folder_for_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()


def _gguf(change: Callable[[bytes], bytes] = bytes, **metadata: Any) -> Callable[[Path], Path]:
    """tiny-qwen3 as a GGUF file; two underscores in a name stand for a dot."""

    def make(folder: Path) -> Path:
        named = {name.replace("__", "."): value for name, value in metadata.items()}
        path = write_golden_gguf(folder / "model.gguf", MODEL, architecture="qwen3", metadata=named)
        path.write_bytes(change(path.read_bytes()))
        return path

    return make


def _gguf_tensor(name: str, offset: int, replacement: bytes) -> Callable[[bytes], bytes]:
    """Bytes in the entry of a tensor, counted from behind its name: dimensions (4), sizes (8 each), type, offset."""

    def change(data: bytes) -> bytes:
        at = data.index(name.encode()) + len(name) + offset
        return data[:at] + replacement + data[at + len(replacement) :]

    return change


def _patched(offset: int, replacement: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + replacement + data[offset + len(replacement) :]


def _nan_in_gguf(data: bytes) -> bytes:
    return data[:-400] + struct.pack("<f", float("nan")) + data[-396:]


def _set(name: str, value: float, dtype: type[np.generic] = np.float32) -> Callable[[dict[str, np.ndarray]], None]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        array = tensors[name].astype(dtype)
        array.flat[7] = value
        tensors[name] = array

    return change


def _replace(name: str, array: np.ndarray) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda tensors: tensors.update({name: array})


def _nested(depth: int) -> str:
    return "[" * depth


START: dict[str, Damage] = {
    "no such path": Damage(lambda folder: folder / "nowhere", ("nowhere", "no such model", "nothing is downloaded")),
    "a model of a hub": Damage(lambda _: "Qwen/Qwen3-0.6B", ("Qwen/Qwen3-0.6B", "nothing is downloaded")),
    "an empty name": Damage(lambda _: "", ("'': neither", "nothing is downloaded")),
    "an empty folder": Damage(lambda folder: folder, ("{folder}", "no config.json")),
    "a file that is no model": Damage(
        lambda folder: (folder / "model.bin").write_bytes(b"x") and folder / "model.bin",
        ("model.bin", "neither a directory nor a .gguf file"),
    ),
    "a folder with a GGUF file": Damage(
        lambda folder: _gguf()(folder) and _without(WEIGHTS)(folder), ("give the GGUF file itself", "model.gguf")
    ),
    "no config": Damage(_without("config.json"), ("{folder}", "no config.json")),
    "config cut off": Damage(_text("config.json", '{"vocab_size": 5'), ("{folder}/config.json", "cannot be read")),
    "config is a list": Damage(_text("config.json", "[]"), ("{folder}/config.json", "not a JSON object")),
    "config in another encoding": Damage(_text("config.json", b'{"a": "\xff"}'), ("{folder}/config.json", "utf-8")),
    "config nested without end": Damage(_text("config.json", _nested(200_000)), ("{folder}/config.json",)),
    "no vocabulary size": Damage(_config(vocab_size=None), ("{folder}", "config.json: vocab_size is missing")),
    "negative vocabulary": Damage(_config(vocab_size=-512), ("config.json: vocab_size is -512", "at least 1")),
    "a vocabulary without weights": Damage(
        _config(vocab_size=2**32), ("config.json: vocab_size is 4294967296", "the weights are only")
    ),
    "context in words": Damage(_config(max_position_embeddings="long"), ("max_position_embeddings is 'long'",)),
    "no layers": Damage(_config(num_hidden_layers=0), ("{folder}", "num_hidden_layers is 0")),
    "half a head": Damage(_config(num_attention_heads=0.5), ("{folder}", "num_attention_heads is 0.5")),
    "negative hidden size": Damage(_config(hidden_size=-64, head_dim=None), ("{folder}", "hidden_size is -64")),
    "end outside the vocabulary": Damage(_config(eos_token_id=[2, 512]), ("config.json", "eos_token_id is 512")),
    "generation config": Damage(_text("generation_config.json", "{"), ("{folder}/generation_config.json",)),
    "generation config's end": Damage(
        _text("generation_config.json", '{"eos_token_id": "</s>"}'), ("generation_config.json", "'</s>'", "0 to 511")
    ),
    "no tokenizer": Damage(_without("tokenizer.json"), ("{folder}", "no tokenizer.json")),
    "tokenizer cut off": Damage(_text("tokenizer.json", '{"model":'), ("{folder}/tokenizer.json", "cannot be read")),
    "tokenizer of nothing": Damage(_text("tokenizer.json", "{}"), ("{folder}/tokenizer.json", "cannot be read")),
    # The library does not raise an error there, it panics.
    "tokenizer with a long prefix": Damage(
        _tokenizer_model(continuing_subword_prefix="a prefix longer than tokens"),
        ("{folder}/tokenizer.json", "cannot be read", "out of range"),
    ),
    "tokenizer config": Damage(_text("tokenizer_config.json", "{'a'}"), ("{folder}/tokenizer_config.json",)),
    "special token without text": Damage(
        _text("tokenizer_config.json", '{"bos_token": {"id": 1}}'), ("{folder}/tokenizer_config.json", "content")
    ),
    "chat template of a number": Damage(
        _text("tokenizer_config.json", '{"chat_template": 5}'),
        ("{folder}/tokenizer_config.json", "chat_template is a damaged int", "must be a text"),
    ),
    "chat templates without names": Damage(
        _text("tokenizer_config.json", '{"chat_template": [{"template": "x"}]}'),
        ("{folder}/tokenizer_config.json", "chat_template is a damaged list", "name and template"),
    ),
    "chat template of other bytes": Damage(
        _text("chat_template.jinja", b"\xff"), ("{folder}/chat_template.jinja", "cannot be read", "utf-8")
    ),
    "special token of a number": Damage(
        _text("tokenizer_config.json", '{"eos_token": 2}'), ("{folder}/tokenizer_config.json", "eos_token is int")
    ),
    "no weights": Damage(_without(WEIGHTS), ("{folder}", "no *.safetensors")),
    "weights are a folder": Damage(_checkpoint(_folder_for_weights), ("{folder}", "no *.safetensors")),
    "empty weights": Damage(_text(WEIGHTS, b""), ("{folder}/model.safetensors", "0 bytes")),
    "header cut off": Damage(_bytes(lambda data: data[:1000]), (WEIGHTS, "does not fit a file of 1000 bytes")),
    "tensors cut off": Damage(_bytes(lambda data: data[:-5000]), (WEIGHTS, "truncated: tensor")),
    "something appended": Damage(_bytes(lambda data: data + b"more"), (WEIGHTS, "nobody owns the last 4 bytes")),
    "absurd header": Damage(_bytes(_patched(0, struct.pack("<Q", 2**63))), (WEIGHTS, f"a header of {2**63} bytes")),
    "header is no JSON": Damage(_bytes(_patched(8, b"nonsense")), (f"{{folder}}/{WEIGHTS}",)),
    "header is a list": Damage(_header(lambda _: b"[1]"), (WEIGHTS, "no JSON object")),
    "tensor past the end": Damage(_header(_past_the_end), (WEIGHTS, "tensor")),
    "overlapping tensors": Damage(_header(_shift), (WEIGHTS, UP_PROJ, "inside the one before")),
    "negative shape": Damage(
        _header(lambda header: header[UP_PROJ].update(shape=[-160, -64])), (WEIGHTS, UP_PROJ, "[-160, -64]")
    ),
    "other shape": Damage(
        _header(lambda header: header[UP_PROJ].update(shape=[160, 65])), (WEIGHTS, UP_PROJ, "needs 41600")
    ),
    "unknown dtype": Damage(_header(lambda header: header[UP_PROJ].update(dtype="F12")), (WEIGHTS, UP_PROJ, "'F12'")),
    "dtype of a list": Damage(
        _header(lambda header: header[UP_PROJ].update(dtype=["F32"])), (WEIGHTS, UP_PROJ, "unknown dtype ['F32']")
    ),
    "a name with line breaks": Damage(
        _header(lambda header: header.update({"a\nb\u2028c": {}})), (WEIGHTS, "a\\nb\\u2028c has no dtype")
    ),
    "a tensor without offsets": Damage(
        _header(lambda header: header[UP_PROJ].pop("data_offsets")), (WEIGHTS, UP_PROJ, "data_offsets")
    ),
    "a tensor twice": Damage(_header(_twice), (WEIGHTS, UP_PROJ, "there twice")),
    "a tensor in two shards": Damage(_checkpoint(_in_two_shards), ("model-1.safetensors", "model-0.safetensors")),
    "index cut off": Damage(_text(INDEX, '{"weight_map": {'), (f"{{folder}}/{INDEX}", "cannot be read")),
    "index of nothing": Damage(_text(INDEX, "{}"), (f"{{folder}}/{INDEX}", "no weight_map")),
    "missing shard": Damage(_index({"a": "model-7.safetensors"}), (INDEX, "model-7.safetensors is listed but missing")),
    "index that leaves its folder": Damage(_index({"a": "../x.safetensors"}), (INDEX, "not a plain file name")),
    "empty GGUF": Damage(_gguf(lambda _: b""), ("{folder}/model.gguf", "cannot be read")),
    "text as GGUF": Damage(_gguf(lambda _: b"no model"), ("{folder}/model.gguf", "not a GGUF file")),
    "GGUF of version 1": Damage(_gguf(_patched(4, b"\1\0\0\0")), ("model.gguf", "version 1 is not supported")),
    "GGUF cut off": Damage(_gguf(lambda data: data[:-100]), ("model.gguf", "truncated")),
    "GGUF cut off in its header": Damage(_gguf(lambda data: data[:5000]), ("model.gguf", "truncated")),
    "GGUF of too many tensors": Damage(_gguf(_patched(8, struct.pack("<Q", 2**62))), ("{folder}/model.gguf",)),
    "GGUF of too much metadata": Damage(_gguf(_patched(16, struct.pack("<Q", 2**62))), ("{folder}/model.gguf",)),
    "GGUF with a key without end": Damage(_gguf(_patched(24, struct.pack("<Q", 2**62))), ("model.gguf", "truncated")),
    "unknown quantization": Damage(
        _gguf(_gguf_tensor("output_norm.weight", 12, struct.pack("<I", 999))), ("output_norm.weight", "999")
    ),
    "GGUF tensor past the end": Damage(
        _gguf(_gguf_tensor("output_norm.weight", 16, struct.pack("<Q", 2**50))), ("truncated", "output_norm.weight")
    ),
    "GGUF tensor of no size": Damage(
        _gguf(_gguf_tensor("output_norm.weight", 4, bytes(8))), ("output_norm.weight", "shape [0]")
    ),
    "GGUF tensor missing": Damage(
        _gguf(lambda data: data.replace(b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight")), ("blk.1.ffn_up.weight",)
    ),
    "GGUF of other sizes": Damage(_gguf(qwen3__feed_forward_length=161), ("ffn_gate.weight has shape [160, 64]",)),
    "GGUF of NaN": Damage(_gguf(_nan_in_gguf), ("model.gguf", "holds NaN or infinity")),
    "GGUF of another architecture": Damage(
        _gguf(lambda data: data.replace(b"\5\0\0\0\0\0\0\0qwen3", b"\5\0\0\0\0\0\0\0mamba", 1)),
        ("'mamba' cannot be converted",),
    ),
    "GGUF without a tokenizer": Damage(_gguf(tokenizer__ggml__model=None), ("tokenizer.ggml.model",)),
    "GGUF with another tokenizer": Damage(_gguf(tokenizer__ggml__pre="gpt-9"), ("'gpt-9' is not supported",)),
}

LOAD: dict[str, Damage] = {
    "missing tensor": Damage(_tensors(lambda tensors: tensors.pop(UP_PROJ)), (f"tensor {UP_PROJ} is missing",)),
    "extra tensor": Damage(
        _tensors(_replace("model.layers.3.mlp.up_proj.weight", np.ones((2, 2), np.float32))),
        (f"{{folder}}/{WEIGHTS}", "tensor model.layers.3.mlp.up_proj.weight is unknown to the model"),
    ),
    "a bias too many": Damage(
        _tensors(_replace("model.layers.0.self_attn.q_proj.bias", np.ones(128, np.float32))),
        ("model.layers.0.self_attn.q_proj.bias is unknown",),
    ),
    "tensor of another shape": Damage(
        _tensors(_replace(UP_PROJ, np.ones((64, 160), np.float32))),
        (f"tensor {UP_PROJ} has shape [64, 160]", "[160, 64]"),
    ),
    "whole numbers": Damage(
        _tensors(_replace(UP_PROJ, np.ones((160, 64), np.int32))), (f"tensor {UP_PROJ} is I32", "BF16, F16")
    ),
    "NaN": Damage(_tensors(_set(UP_PROJ, np.nan)), (f"{{folder}}/{WEIGHTS}", f"{UP_PROJ} holds NaN or infinity")),
    "infinity in half floats": Damage(
        _tensors(_set("model.norm.weight", np.inf, np.float16)), ("model.norm.weight holds NaN or infinity",)
    ),
    "another architecture": Damage(
        _config(architectures=["MambaForCausalLM"]), ("{folder}", "MambaForCausalLM", "Qwen3ForCausalLM")
    ),
    "no architecture": Damage(_config(architectures=None), ("{folder}", "architectures", "Qwen3ForCausalLM")),
    "another number of layers": Damage(_config(num_hidden_layers=2), ("model.layers.2.", "unknown to the model")),
    "heads that cannot be shared": Damage(_config(num_key_value_heads=3), ("{folder}", "no multiple", "3")),
    "an odd head": Damage(_config(head_dim=15), ("{folder}", "head_dim 15 is odd")),
    "no inner size": Damage(_config(intermediate_size=None), ("{folder}", "intermediate_size is missing")),
    "another activation": Damage(_config(hidden_act="gelu"), ("{folder}", "hidden_act 'gelu'")),
    "another rope": Damage(
        _config(rope_parameters={"rope_type": "longrope"}), ("{folder}", "'longrope' is not supported", "yarn")
    ),
    "a short window": Damage(
        _config(sliding_window=16, use_sliding_window=True, layer_types=None),
        ("{folder}", "sliding_window of 16 tokens", "--max-model-len 16"),
    ),
    "weights of a quantizer": Damage(
        _config(quantization_config={"quant_method": "gptq"}), ("{folder}", "quantization_config")
    ),
    "a head that may be tied": Damage(_config(tie_word_embeddings="yes"), ("{folder}", "tie_word_embeddings is 'yes'")),
    "no epsilon": Damage(_config(rms_norm_eps=-1e-6), ("{folder}", "rms_norm_eps is -1e-06")),
}
