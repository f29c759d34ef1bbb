"""Loads the processor that an author names, and makes its configuration without a model."""

from __future__ import annotations

import dataclasses
import importlib
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fastdeploy_lp.config import (
    CacheConfig,
    FDConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.dialects.plugin_dict import CLASS
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError
from fastdeploy_lp.logits_processor.registry import load_processor
from fastdeploy_lp.logits_processor.token_arguments import Encode
from fastdeploy_lp.model_tokenizer import read_tokenizer
from fastdeploy_lp.platforms.imports import quiet_paddle

Processor = str | type | Mapping[str, Any]
"""A SPEC, a class of any dialect, or a plugin dict."""

VOCAB_SIZE = 1024
EOS_TOKEN_ID = 2


def load(processor: Processor) -> DeclaredProcessor:
    """Returns the processor as a server would declare it; raises LogitsProcessorSpecError."""
    # Hides Paddle's advice about thread counts and compiler caches, which does not concern the author's code.
    with quiet_paddle(), redirect_stderr(io.StringIO()):
        importlib.import_module("paddle")
    if isinstance(processor, str):
        return load_processor(processor)
    if isinstance(processor, type):
        return load_processor(spec_of(processor), processor)
    if not isinstance(processor, Mapping):
        kind = type(processor).__name__
        raise LogitsProcessorSpecError(repr(processor), f"is neither a SPEC nor a class nor a plugin dict but {kind}")
    cls = processor.get(CLASS)
    return load_processor(spec_of(cls) if isinstance(cls, type) else "plugin", dict(processor))


def standalone_fd_config(
    *, vocab_size: int = VOCAB_SIZE, max_num_seqs: int = 8, max_model_len: int = 64, directory: str = ""
) -> FDConfig:
    """Returns a configuration as a processor's constructor gets it, of a model that does not exist.

    directory: folder with a `tokenizer.json`, for processors that need the tokenizer.
    """
    special = {"bos_token_id": 1, "eos_token_id": EOS_TOKEN_ID}
    return FDConfig(
        model_config=ModelConfig(
            model="standalone",
            directory=directory,
            served_model_name="standalone",
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            eos_token_ids=(EOS_TOKEN_ID,),
            hf_config={"vocab_size": vocab_size, "max_position_embeddings": max_model_len, **special},
        ),
        scheduler_config=SchedulerConfig(max_num_seqs),
        cache_config=CacheConfig(block_size=16, num_blocks=2),
        parallel_config=ParallelConfig(),
        structured_outputs_config=StructuredOutputsConfig(),
    )


@contextmanager
def standalone_model(vocab_size: int) -> Iterator[FDConfig]:
    """Yields a standalone configuration with a tokenizer of single bytes, which exists until the block ends."""
    with TemporaryDirectory(prefix="fastdeploy-lp-") as directory:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={byte: index for index, byte in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.save(str(Path(directory) / "tokenizer.json"))
        yield standalone_fd_config(vocab_size=vocab_size, directory=directory)


def resized(
    fd_config: FDConfig, *, max_num_seqs: int, vocab_size: int | None = None, max_model_len: int | None = None
) -> FDConfig:
    """Returns the configuration with this number of slots and, if given, another vocabulary and a shorter context."""
    model = fd_config.model_config
    length = min(max_model_len or model.max_model_len, model.max_model_len)
    return dataclasses.replace(
        fd_config,
        model_config=dataclasses.replace(model, vocab_size=vocab_size or model.vocab_size, max_model_len=length),
        scheduler_config=dataclasses.replace(fd_config.scheduler_config, max_num_seqs=max_num_seqs),
    )


def phrase_encoder(fd_config: FDConfig) -> Encode | None:
    """Returns a function that tokenizes texts in arguments; None if the model's directory has no tokenizer."""
    path = Path(fd_config.model_config.directory) / "tokenizer.json"
    if not path.is_file():
        return None

    # Few processors have texts for arguments, and a check makes hundreds of harnesses.
    @cache
    def tokenizer() -> Tokenizer:
        read: Tokenizer = read_tokenizer(path)
        return read

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer().encode(text, add_special_tokens=False).ids
        return ids

    return encode
