"""Random tiny models as PaddleNLP itself writes them, and what it computes with them.

Needs an environment of its own: `pip install paddlepaddle==3.3.1 paddlenlp==3.0.0b4 "aistudio-sdk<0.3" "pyarrow<22"`.
There `python tests/support/paddlenlp_reference.py tests/data/golden` wrote `paddlenlp-llama` and `paddlenlp-qwen2`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "use_flash_attention": False,
}
PROMPT_LENGTH = 40


def main(directory: Path) -> None:
    """A Llama with a head of its own as a pickle, a Qwen2 with a tied head as safetensors."""
    import paddle
    from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    paddle.seed(3)
    llama = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    qwen2 = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True))
    for name, model, safe in (("paddlenlp-llama", llama, False), ("paddlenlp-qwen2", qwen2, True)):
        _randomize(paddle, model)
        model.save_pretrained(str(directory / name), safe_serialization=safe)
        ids = np.random.default_rng(1).integers(3, SIZES["vocab_size"], (1, PROMPT_LENGTH))
        with paddle.no_grad():
            mask = paddle.ones([1, PROMPT_LENGTH], dtype="int64")
            found = model.eval()(paddle.to_tensor(ids), attention_mask=mask)
        logits = (found[0] if isinstance(found, (tuple, list)) else found).astype("float32").numpy()[0]
        np.savez(directory / name / "reference.npz", ids=ids[0], logits=logits)


def _randomize(paddle: Any, model: Any) -> None:
    for name, parameter in model.named_parameters():
        drawn = 0.12 * paddle.randn(parameter.shape)
        parameter.set_value((1 + drawn if "norm" in name else drawn).astype(parameter.dtype))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
