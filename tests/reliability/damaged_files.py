"""Models that are nearly right: one of their files changed at random, each known by a seed and a number.

Most changes are of what the file's structure says (counts, sizes, offsets, types, names, values of fields); the others
are of its bytes.
"""

from __future__ import annotations

import json
import pickletools
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from reliability.gguf_places import number_places, text_places
from reliability.hostile_bodies import BYTE_CHANGES, NASTY, changed
from safetensors.numpy import load_file, save_file
from support.gguf_model import write_golden_gguf
from support.paddle_checkpoint import write_pdparams
from support.tiny import write_tiny_checkpoint

KINDS = ("safetensors", "gguf", "pdparams", "tokenizer", "config")
MODEL = "tiny-qwen3"
SHARDS = 2
INDEX = "model.safetensors.index.json"
SIZES = [0, 1, 2, 3, 7, 64, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
INTEGERS = [*SIZES, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
DTYPES = ["F64", "F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F4", "C64", "x", "", "f32"]
FIELDS_OF_CONFIG = """
    architectures model_type vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    intermediate_size max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters hidden_act
    tie_word_embeddings attention_bias mlp_bias eos_token_id bos_token_id pad_token_id sliding_window use_sliding_window
    layer_types quantization_config torch_dtype dtype partial_rotary_factor max_window_layers weight_map metadata
    temperature top_p do_sample rope_type factor low_freq_factor high_freq_factor beta_fast beta_slow
    original_max_position_embeddings attention_factor attention_dropout paddlenlp_version
"""
FIELDS_OF_TOKENIZERS = """
    chat_template bos_token eos_token unk_token pad_token additional_special_tokens added_tokens_decoder add_bos_token
    model_max_length tokenizer_class version truncation padding added_tokens normalizer pre_tokenizer post_processor
    decoder model type vocab merges unk_token dropout continuing_subword_prefix end_of_word_suffix byte_fallback
    ignore_merges fuse_unk content id special pattern Regex String behavior pretokenizers processors decoders
"""
FIELDS = [*FIELDS_OF_CONFIG.split(), *FIELDS_OF_TOKENIZERS.split()]
TEMPLATES = [
    *(
        "{{ 1 / 0 }}",
        "{% for x in range(10**9) %}x{% endfor %}",
        "{{ messages * 10**9 }}",
        "{% if %}",
        "{% set a = 1 %}",
    ),
    *("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ ''.__class__.__mro__ }}", "{% include '/etc/passwd' %}"),
    *(
        "{{ raise_exception('x') }}",
        "{% set x = 'a' * 10**10 %}{{ x }}",
        "{{ strftime_now('%Y') }}",
        "{% generation %}",
    ),
    *("{{ messages[99].content }}", "{{" * 3000, "{{ 2 ** 3 ** 2 }}", "{{ '%99999999999d' % 1 }}", "{{ [1] | sum }}"),
    *("{{ lipsum(n=9) }}", "{{ range(10**12) | list }}", "{{ namespace(__init__=1) }}", "\x00", "\u2028{{ 1 }}"),
]
NASTY_OPCODES = [
    *(b"\x80\xff", b"\x95" + b"\xff" * 8, b"\x8d" + b"\xff" * 8, b"\x8e" + (2**40).to_bytes(8, "little")),
    *(b"B\xff\xff\xff\xff", b"cos\nsystem\n", b"cnumpy\nndarray\n", b"cbuiltins\neval\n", b"\x8a\xff" + b"\x7f" * 255),
    *(b"(", b".", b"0", b"2", b"R", b"b", b"u", b"s", b"t", b"}", b"]", b")", b"N", b"i", b"o", b"Q", b"q\0", b"h\0"),
    *(b"\x81", b"\x85", b"\x86", b"\x87", b"\x88", b"\x93", b"\x94", b"K\xff", b"J\xff\xff\xff\xff", b"I9\n", b"P1\n"),
    *(b"r\xff\xff\xff\xff", b"\x82\1", b"\x8c\x01O", b"C\x10" + b"A" * 16),
]


class DamagedModels:
    """Models of one of KINDS, below `folder`, of which only the last one made exists."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._base, self._made = kind, folder / "base", folder / "made"
        self._base.mkdir(parents=True)
        getattr(self, f"_write_{kind}")()

    @property
    def whole(self) -> Path:
        """The model that nothing was done to."""
        return self._base / "model.gguf" if self._kind == "gguf" else self._base

    def damaged(self, seed: int, number: int) -> tuple[Path, str]:
        """What `--model` is, and the name of the file that is damaged."""
        rng = random.Random(f"{self._kind}:{seed}:{number}")
        shutil.rmtree(self._made, ignore_errors=True)
        self._made.mkdir()
        name = self._chosen(rng)
        for path in self._base.iterdir():
            # The template of the one would hide that of the other.
            hides = path.suffix == ".jinja" and name == "tokenizer_config.json"
            if path.name != name and not hides:
                (self._made / path.name).symlink_to(path)
        content = (self._base / name).read_bytes()
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            content = _damaged(name, content, rng)
        (self._made / name).write_bytes(content)
        return (self._made / name if self._kind == "gguf" else self._made), name

    def _chosen(self, rng: random.Random) -> str:
        names = {
            "tokenizer": ["tokenizer.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"],
            "config": ["config.json", "config.json", "config.json", "generation_config.json", INDEX],
            "safetensors": ["model.safetensors"],
            "pdparams": ["model_state.pdparams"],
            "gguf": ["model.gguf"],
        }[self._kind]
        return rng.choice(names)

    def _write_safetensors(self) -> None:
        write_tiny_checkpoint(self._base, MODEL)

    def _write_tokenizer(self) -> None:
        write_tiny_checkpoint(self._base, MODEL)
        config = json.loads((self._base / "tokenizer_config.json").read_text())
        (self._base / "chat_template.jinja").write_text(config["chat_template"])

    def _write_config(self) -> None:
        write_tiny_checkpoint(self._base, MODEL)
        (self._base / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3], "temperature": 0.6}))
        tensors = load_file(self._base / "model.safetensors")
        (self._base / "model.safetensors").unlink()
        weight_map = {}
        for number in range(SHARDS):
            part = dict(list(tensors.items())[number::SHARDS])
            save_file(part, self._base / f"model-{number}.safetensors")
            weight_map |= dict.fromkeys(part, f"model-{number}.safetensors")
        (self._base / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))

    def _write_pdparams(self) -> None:
        write_tiny_checkpoint(self._base, MODEL)
        (self._base / "model.safetensors").unlink()
        write_pdparams(self._base, MODEL, "qwen3.")

    def _write_gguf(self) -> None:
        write_golden_gguf(self._base / "model.gguf", MODEL, architecture="qwen3")


def _damaged(name: str, content: bytes, rng: random.Random) -> bytes:
    if not content or rng.random() < 0.15:
        return rng.choice(BYTE_CHANGES)(content, rng)
    change = CHANGES.get(Path(name).suffix, _changed_json)
    return change(content, rng)


def _changed_json(content: bytes, rng: random.Random) -> bytes:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return rng.choice(BYTE_CHANGES)(content, rng)
    if rng.random() < 0.1 and isinstance(value, dict) and value:
        # The same name a second time.
        key = rng.choice([*value, *FIELDS])
        return json.dumps(value)[:-1].encode() + f", {json.dumps(key)}: {json.dumps(rng.choice(NASTY))}}}".encode()
    if rng.random() < 0.1 and isinstance(value, dict):
        value["chat_template"] = rng.choice([*TEMPLATES, *NASTY])
    try:
        return json.dumps(changed(value, rng, FIELDS)).encode()
    except RecursionError:
        return b"[" * 100_000


def _changed_template(content: bytes, rng: random.Random) -> bytes:
    template = rng.choice(TEMPLATES).encode()
    at = rng.randrange(len(content) + 1)
    return rng.choice(
        [template, content[:at] + template + content[at:], content[:at] + content[at + rng.randrange(9) :]]
    )


def _changed_safetensors(content: bytes, rng: random.Random) -> bytes:
    (length,) = struct.unpack("<Q", content[:8].ljust(8, b"\0"))
    data = content[8 + length :]
    if rng.random() < 0.1:
        return struct.pack("<Q", rng.choice([*INTEGERS, length + 1, length - 1]) % 2**64) + content[8:]
    try:
        header = json.loads(content[8 : 8 + length])
        name = rng.choice(list(header))
        entry = header[name]
        match rng.randrange(6):
            case 0:
                entry["dtype"] = rng.choice(DTYPES)
            case 1:
                entry["shape"] = [rng.choice([*INTEGERS, -1, 64.0]) for _ in range(rng.randrange(5))]
            case 2:
                entry["data_offsets"] = [rng.choice([*INTEGERS, *entry["data_offsets"]]) for _ in range(2)]
            case 3:
                header[name.replace("layers.1", "layers.9") + rng.choice(["", ".x"])] = header.pop(name)
            case 4:
                header["__metadata__"] = rng.choice([*NASTY, {"format": "pd"}, {"format": "tf"}])
            case _:
                header = changed(header, rng, [*header, "dtype", "shape", "data_offsets"])
        text = json.dumps(header).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, IndexError):
        return rng.choice(BYTE_CHANGES)(content, rng)
    return struct.pack("<Q", len(text)) + text + data


def _changed_gguf(content: bytes, rng: random.Random) -> bytes:
    try:
        numbers, texts = number_places(content), text_places(content)
    except (ValueError, struct.error):
        return rng.choice(BYTE_CHANGES)(content, rng)
    if texts and rng.random() < 0.15:
        at, size = rng.choice(texts)
        return content[:at] + rng.randbytes(size) + content[at + size :]
    if not numbers:
        return rng.choice(BYTE_CHANGES)(content, rng)
    at, size = rng.choice(numbers)
    number = int.from_bytes(content[at : at + size], "little")
    value = rng.choice([*INTEGERS, number + 1, number - 1, number * 2, rng.randrange(40)]) % 2 ** (8 * size)
    return content[:at] + value.to_bytes(size, "little") + content[at + size :]


def _changed_pickle(content: bytes, rng: random.Random) -> bytes:
    try:
        places = [place for _, _, place in pickletools.genops(content) if place is not None]
    except Exception:  # noqa: BLE001 - a damaged pickle may raise anything
        return rng.choice(BYTE_CHANGES)(content, rng)
    at = rng.randrange(len(places))
    begin, end = places[at], (places[at + 1] if at + 1 < len(places) else len(content))
    other = rng.randrange(len(places) - 1) if len(places) > 1 else 0
    moved = content[places[other] : places[min(other + 1, len(places) - 1)]]
    operation = rng.choice(
        [b"", rng.choice(NASTY_OPCODES), moved, content[begin:end] * 2, _renumbered(content[begin:end], rng)]
    )
    return content[:begin] + operation + content[end if rng.random() < 0.7 else begin :]


def _renumbered(operation: bytes, rng: random.Random) -> bytes:
    """Its first bytes behind the opcode, which for most are a number."""
    size = min(rng.choice([1, 2, 4, 8]), max(0, len(operation) - 1))
    number = rng.choice(INTEGERS) % 2 ** (8 * size)
    return operation[:1] + number.to_bytes(size, "little") + operation[1 + size :]


CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".safetensors": _changed_safetensors,
    ".gguf": _changed_gguf,
    ".pdparams": _changed_pickle,
    ".jinja": _changed_template,
}
