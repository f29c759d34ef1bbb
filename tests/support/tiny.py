"""Tiny random-weight models: as the worker sees them, fed with token ids, and as checkpoints that can be served."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fastdeploy_lp.config import (
    CacheConfig,
    FDConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from fastdeploy_lp.config.speculation import Speculation

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
# What the tokenizer's merges are learned from; all bytes are tokens anyway.
TEXT = "the quick brown fox jumps over the lazy dog and the dog sleeps on while the other animals look at it"
# A model that computes a token in a millisecond needs room for many, so that a test can end them before they end.
LONG_CONTEXT = 40_000
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_fd_config(
    name: str = "tiny-llama",
    *,
    max_num_seqs: int = 8,
    max_model_len: int = 64,
    block_size: int = 4,
    max_num_batched_tokens: int = 64,
    num_blocks: int | None = None,
    enable_prefix_caching: bool = True,
    cache_queue_port: int | None = None,
    eos_token_ids: tuple[int, ...] = (),
    logprobs_mode: str = "raw_logprobs",
    policy: StructuredOutputsConfig | None = None,
    speculation: Speculation | None = None,
) -> FDConfig:
    """The configuration of one of the golden tiny models; by default every slot can fill its context.

    The `model` of `speculation` is the name of another one.
    """
    blocks_per_seq = -(-max_model_len // block_size)
    model_config = ModelConfig(
        model=name,
        directory=str(GOLDEN / name),
        served_model_name=name,
        max_model_len=max_model_len,
        eos_token_ids=eos_token_ids,
        logprobs_mode=logprobs_mode,
        **_sizes(name),
    )
    draft = speculation.model if speculation is not None else None
    return FDConfig(
        model_config=model_config,
        draft_model_config=draft and replace(model_config, directory=str(GOLDEN / draft), **_sizes(draft)),
        scheduler_config=SchedulerConfig(max_num_seqs, max_num_batched_tokens, speculation=speculation),
        cache_config=CacheConfig(
            block_size,
            num_blocks or 1 + blocks_per_seq * max_num_seqs,
            cache_queue_port=cache_queue_port,
            enable_prefix_caching=enable_prefix_caching,
        ),
        parallel_config=ParallelConfig(),
        structured_outputs_config=policy or StructuredOutputsConfig(),
    )


def _sizes(name: str) -> dict[str, Any]:
    hf_config = json.loads((GOLDEN / name / "config.json").read_text())
    return {"vocab_size": hf_config["vocab_size"], "hf_config": hf_config}


def write_tiny_checkpoint(folder: Path, name: str = "tiny-llama", *, context: int | None = None) -> Path:
    """One of the tiny models with a byte-level tokenizer and a chat template, which a server can load.

    `context`: in place of the model's own number of positions.
    """
    for file in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / name / file, folder / file)
    hf_config = json.loads((folder / "config.json").read_text())
    if context is not None:
        (folder / "config.json").write_text(json.dumps(hf_config | {"max_position_embeddings": context}))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=hf_config["vocab_size"],
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
