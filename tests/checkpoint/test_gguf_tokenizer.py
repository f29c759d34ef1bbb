from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer

from fastdeploy_lp.checkpoint import CheckpointError, ModelFiles
from fastdeploy_lp.checkpoint.gguf_reader import read_gguf
from fastdeploy_lp.checkpoint.gguf_tokenizer import build_tokenizer, tokenizer_config

GOLDEN = json.loads((Path(__file__).parents[1] / "data/golden/smollm2.json").read_text(encoding="utf-8"))

# Byte values that no token of SmolLM2 stands for: control characters, and lead bytes of code points not in use.
SMOLLM2_LACKS = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}

TEXTS = [
    "",
    " ",
    "  leading, trailing  ",
    "tabs\tand\r\nlines\n\n\n",
    "It's we'll DON'T I've",
    "1234567890 3.14159 1e-10 ²³ ½ ٣٤",
    "def f(x):\n    return x  # comment\n",
    "naïve café — “quoted” … ‰",
    "e\u0301 and \u00e9 stay apart",
    "Ελληνικά русский עברית العربية हिन्दी",
    "中文字符 日本語 한국어",
    "😀 👩\u200d👩\u200d👧 🇫🇷 \U0001f9ff",
    "\u200b\ufeff\u00a0\u2028\u3000",
    "\x00\x01\x7f",
    "<|im_start|>user\nhi<|im_end|>",
    "<|im_start|not a token|>",
    "Ġ Ċ ĉ",
]


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: ModelFiles) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2.directory / "tokenizer.json"))


def tokenizer_of(model: Any, tmp_path: Path) -> Tokenizer:
    return build_tokenizer(read_gguf(model.write(tmp_path / "tiny.gguf")))


# SmolLM2


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["prompt"][:30])
def test_golden_prompts_have_the_reference_ids(smollm2_tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    assert smollm2_tokenizer.encode(case["rendered"], add_special_tokens=False).ids == case["prompt_ids"]
    assert smollm2_tokenizer.encode(case["rendered"]).ids == case["prompt_ids"]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["prompt"][:30])
def test_golden_outputs_decode_to_the_reference_text(smollm2_tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    assert smollm2_tokenizer.decode(case["output_ids"], skip_special_tokens=True) == case["output_text"]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["prompt"][:30])
def test_the_chat_template_renders_the_golden_prompts(smollm2: ModelFiles, case: dict[str, Any]) -> None:
    config = json.loads((smollm2.directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(config["chat_template"])
    assert template.render(messages=case["messages"], add_generation_prompt=True) == case["rendered"]


def test_smollm2_tokenizer_config_names_its_tokens(smollm2: ModelFiles) -> None:
    config = json.loads((smollm2.directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("chat_template")
    assert config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_encoding_and_decoding(smollm2_tokenizer: Tokenizer, text: str) -> None:
    ids = smollm2_tokenizer.encode(text, add_special_tokens=False).ids
    assert smollm2_tokenizer.decode(ids, skip_special_tokens=False) == text


def test_random_unicode_survives_encoding_and_decoding(smollm2_tokenizer: Tokenizer) -> None:
    choose = random.Random(0)
    surrogates = range(0xD800, 0xE000)
    for _ in range(2000):
        limit = choose.choice([0x80, 0x800, 0x10000, sys.maxunicode + 1])
        points = [point for point in choose.choices(range(limit), k=12) if point not in surrogates]
        text = "".join(char for char in map(chr, points) if not SMOLLM2_LACKS & set(char.encode()))
        ids = smollm2_tokenizer.encode(text, add_special_tokens=False).ids
        assert smollm2_tokenizer.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_of_smollm2_are_skipped_on_demand(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("<|im_start|>hello<|im_end|><|endoftext|>").ids
    assert (ids[0], ids[-2], ids[-1]) == (1, 2, 0)
    assert smollm2_tokenizer.decode(ids) == "hello"
    assert smollm2_tokenizer.get_vocab_size() == 49152


# Rules of the format, on a tiny vocabulary


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return list(tokenizer.encode(text, add_special_tokens=False).tokens)


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["1", "2", "3", "4", "5"]),
        ("gpt-2", ["1234", "5"]),
        ("gpt2", ["1234", "5"]),
        ("default", ["1234", "5"]),
        ("llama-bpe", ["123", "4", "5"]),
        ("qwen2", ["1", "2", "3", "4", "5"]),
    ],
)
def test_each_pre_tokenizer_groups_digits_its_own_way(tmp_path: Path, tiny: Any, pre: str, expected: list[str]) -> None:
    tiny.metadata["tokenizer.ggml.pre"] = pre
    assert pieces(tokenizer_of(tiny, tmp_path), "12345") == expected


@pytest.mark.parametrize("pre", ["smollm", "gpt2", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("text", TEXTS)
def test_every_pre_tokenizer_keeps_the_text(tmp_path: Path, tiny: Any, pre: str, text: str) -> None:
    tiny.metadata["tokenizer.ggml.pre"] = pre
    tokenizer = tokenizer_of(tiny, tmp_path)
    decoded = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
    assert decoded == (text.replace("e\u0301", "\u00e9") if pre == "qwen2" else text)


def test_merges_apply_in_order(tmp_path: Path, tiny: Any) -> None:
    assert pieces(tokenizer_of(tiny, tmp_path), "hello hello hel") == ["hello", "Ġhello", "Ġ", "he", "l"]


def test_only_llama_bpe_takes_a_whole_token_that_no_merge_makes(tmp_path: Path, tiny: Any) -> None:
    tiny.metadata["tokenizer.ggml.merges"] = ["h e"]
    assert pieces(tokenizer_of(tiny, tmp_path), "hello") == ["he", "l", "l", "o"]
    tiny.metadata["tokenizer.ggml.pre"] = "llama-bpe"
    assert pieces(tokenizer_of(tiny, tmp_path), "hello") == ["hello"]


def test_control_tokens_are_special_and_user_defined_ones_are_not(tmp_path: Path, tiny: Any) -> None:
    tokenizer = tokenizer_of(tiny, tmp_path)
    ids = tokenizer.encode("<|eot|>he<think>").ids
    assert [tokenizer.id_to_token(token) for token in ids] == ["<|eot|>", "he", "<think>"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "he<think>"


def test_ids_are_those_of_the_gguf(tmp_path: Path, tiny: Any) -> None:
    tokenizer = tokenizer_of(tiny, tmp_path)
    tokens = tiny.metadata["tokenizer.ggml.tokens"]
    assert [tokenizer.id_to_token(index) for index in range(len(tokens))] == tokens
    assert tokenizer.get_vocab_size() == len(tokens)


@pytest.mark.parametrize(
    ("pre", "stated", "starts"),
    [
        ("smollm", None, False),
        ("smollm", False, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ],
)
def test_a_text_starts_with_bos_if_the_gguf_says_so(
    tmp_path: Path, tiny: Any, pre: str, stated: bool | None, starts: bool
) -> None:
    tiny.metadata["tokenizer.ggml.pre"] = pre
    if stated is not None:
        tiny.metadata["tokenizer.ggml.add_bos_token"] = stated
    tokenizer = tokenizer_of(tiny, tmp_path)
    assert tokenizer.encode("he").tokens == (["<|bos|>", "he"] if starts else ["he"])
    assert tokenizer.encode("he", add_special_tokens=False).tokens == ["he"]
    assert tokenizer_config(read_gguf(tmp_path / "tiny.gguf"))["add_bos_token"] is starts


def test_what_the_gguf_lacks_is_left_out_of_the_config(tmp_path: Path, tiny: Any) -> None:
    config = tokenizer_config(read_gguf(tiny.write(tmp_path / "tiny.gguf")))
    assert (config["bos_token"], config["eos_token"]) == ("<|bos|>", "<|eos|>")
    assert not {"unk_token", "pad_token", "chat_template"} & set(config)


# Tokenizers that cannot be converted


def say(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(metadata: dict[str, Any]) -> None:
        metadata[f"tokenizer.ggml.{name}"] = change(metadata.get(f"tokenizer.ggml.{name}"))

    return apply


def bos_without_id(metadata: dict[str, Any]) -> None:
    metadata["tokenizer.ggml.add_bos_token"] = True
    del metadata["tokenizer.ggml.bos_token_id"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (say("model", lambda _: "t5"), r"tokenizer model 't5' is not supported; .* byte-level BPE .*'gpt2'"),
        (say("pre", lambda _: "tekken"), "pre-tokenizer 'tekken' is not supported; .* llama3, qwen2, smollm"),
        (lambda metadata: metadata.pop("tokenizer.ggml.pre"), r"no metadata tokenizer\.ggml\.pre"),
        (lambda metadata: metadata.pop("tokenizer.ggml.merges"), r"no metadata tokenizer\.ggml\.merges"),
        (say("merges", lambda merges: [*merges, "zz y"]), "has 'zz y', which is not made of tokens"),
        (say("merges", lambda merges: [*merges, "he"]), "has 'he', which is not made of tokens"),
        (say("tokens", lambda tokens: [*tokens[:-1], "a"]), r"tokens has 1 tokens twice"),
        (say("token_type", lambda types: types[:-1]), r"token_type has \d+ entries for \d+ tokens"),
        (say("bos_token_id", lambda _: 5000), r"bos_token_id is 5000, which is not in the vocabulary"),
        (bos_without_id, r"tokenizer\.ggml\.bos_token_id is missing"),
    ],
)
def test_a_tokenizer_that_cannot_be_converted_says_why(
    tmp_path: Path, tiny: Any, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    change(tiny.metadata)
    file = read_gguf(tiny.write(tmp_path / "tiny.gguf"))
    with pytest.raises(CheckpointError, match=reason) as caught:
        build_tokenizer(file), tokenizer_config(file)
    assert str(caught.value).startswith(f"{tmp_path / 'tiny.gguf'}: ")
