"""Pre-tokenization (splitting of text before byte-pair merging), by GGUF's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split


@dataclass(frozen=True)
class PreTokenization:
    """One value of `tokenizer.ggml.pre`.

    split: makes the pre-tokenizer. normalize: makes the normalizer, if any. ignore_merges: a piece that is a token
    stays whole. add_bos: default for starting a text with the BOS token, if the GGUF does not specify it.
    """

    split: Callable[[], PreTokenizer]
    normalize: Callable[[], Normalizer] | None = None
    ignore_merges: bool = False
    add_bos: bool = False


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), _gpt2()])


def _digit_groups(digits: str) -> Callable[[], PreTokenizer]:
    """Returns the splitting of Llama 3 and Qwen 2, which differ in how many digits stay together."""
    pattern = "|".join(
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            r"[^\r\n\p{L}\p{N}]?\p{L}+",
            digits,
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    )
    return lambda: Sequence(
        [Split(Regex(pattern), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )


_GPT2 = PreTokenization(_gpt2)
_LLAMA3 = PreTokenization(_digit_groups(r"\p{N}{1,3}"), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenization(_digit_groups(r"\p{N}"), normalize=NFC)

PRE_TOKENIZATIONS: dict[str, PreTokenization] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "smollm": PreTokenization(_single_digits),
}
