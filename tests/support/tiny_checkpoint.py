"""A tiny random-weight model with a tokenizer and a chat template of its own, for tests that start whole engines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from fastdeploy_lp.entrypoints.bench.serving import PROMPTS
from support.tiny import GOLDEN

SPECIAL = ["<pad>", "<s>", "</s>"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}> {% endif %}"
)


def write_tiny_checkpoint(directory: Path) -> str:
    """The path of a checkpoint in `directory` as `--model` takes it; its random tokens cut characters anywhere."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(GOLDEN / "tiny-llama" / name, directory / name)
    vocab_size = json.loads((directory / "config.json").read_text())["vocab_size"]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=1,
        special_tokens=SPECIAL,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([PROMPTS], trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise RuntimeError(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, the model {vocab_size}")
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return str(directory)
