"""A tiny model that one or several ranks serve, with dialects and builtins in its chain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastdeploy_lp.logits_processor import BUILTIN
from support.chat import HELLO, post
from support.server import ServerProcess
from support.tiny import LONG_CONTEXT, write_tiny_checkpoint

RANKS = "2"
HASH_BIAS = {"hash_bias": [7, 40.0]}
PADDLE_DIALECTS = {
    "Native": "support.hash_bias:Native",
    "Vllm": "support.hash_bias:Vllm",
    "Mrv2": "support.hash_bias:Mrv2",
    "RequestTwo": "support.hash_bias:RequestTwo",
    "RequestThree": "support.hash_bias:RequestThree",
    "Plugin": "Plugin=support.hash_bias:PLUGIN",
}
DIALECTS = {
    **PADDLE_DIALECTS,
    "HuggingFace": "support.hash_bias_torch:HuggingFace",
    "TorchBoost": "support.torch_boost:TorchBoost",
}


def serve(
    folder: Path, *options: str, dialects: Mapping[str, str] = DIALECTS, builtins: Iterable[str] = BUILTIN
) -> ServerProcess:
    """A server of tiny-llama with room for long answers, its checkpoint in `folder`."""
    declared = [*dialects.values(), *builtins, "support.counting:CountsSteps"]
    sizes = ["--max-num-seqs", "4", "--max-model-len", str(LONG_CONTEXT), "--vllm-compat"]
    write_tiny_checkpoint(folder, context=LONG_CONTEXT)
    return ServerProcess("--logits-processors", *declared, *sizes, *options, model=str(folder))


def answer(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    """The one choice that a chat gets; greedy unless the fields say otherwise."""
    body = {
        "messages": HELLO,
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }
    answered = post(server, body)
    if answered.status_code != 200:
        raise RuntimeError(answered.text)
    choice: dict[str, Any] = answered.json()["choices"][0]
    return choice
