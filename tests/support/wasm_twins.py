"""The same processor in Python and in WebAssembly, over random requests in an engine with too little room for them."""

from __future__ import annotations

from random import Random
from typing import Any

from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.worker.engine_core import EngineCore
from support.sequences import Ran, request, run_to_end
from support.tiny import tiny_fd_config
from support.wasm import NO_REPEATS, NoRepeats

SLOTS, MAX_MODEL_LEN, BLOCK_SIZE = 6, 48, 4
NAME = "no_repeats"


def twin_engine(*, wasm: bool, **room: Any) -> EngineCore:
    """An engine with one of the two, under the same name."""
    config = tiny_fd_config(max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, **room)
    spec = spec_of(NoRepeats)
    specs = [f"{NAME}={NO_REPEATS}"] if wasm else [f"{NAME}={spec}"]
    return EngineCore(config, LogitsProcessorChain(load_processors(specs), config))


def random_twin_requests(count: int, seed: int) -> list[AddRequest]:
    """Greedy and sampled ones, three of four with the processor."""
    rng = Random(seed)
    made = []
    for index in range(count):
        args = {"penalty": rng.choice([1.5, 8.0, 64.0]), "window": rng.choice([1, 3, 64])}
        sampled = {"temperature": rng.choice([0.7, 1.5]), "seed": rng.randrange(2**63)} if rng.random() < 0.5 else {}
        made.append(
            request(
                f"r{index}",
                [rng.randrange(3, 500) for _ in range(rng.randint(1, 12))],
                max_tokens=rng.randint(1, 24),
                selection=Selection(named={NAME: args}) if rng.random() < 0.75 else None,
                **sampled,
            )
        )
    return made


ROOMS: dict[str, dict[str, Any]] = {
    "churn": {},
    "preemption": {"num_blocks": 1 + MAX_MODEL_LEN // BLOCK_SIZE + 6},
    "speculation": {"speculation": Speculation("ngram", adaptive=False)},
    "preemption and speculation": {
        "num_blocks": 1 + MAX_MODEL_LEN // BLOCK_SIZE + 6,
        "speculation": Speculation("ngram", adaptive=False),
    },
}


def both(count: int, seed: int, room: dict[str, Any]) -> tuple[dict[str, Ran], dict[str, Ran], EngineCore]:
    """The requests' tokens of Python and of WebAssembly, and the latter's engine."""
    native, module = twin_engine(wasm=False, **room), twin_engine(wasm=True, **room)
    requests = random_twin_requests(count, seed)
    return run_to_end(native, requests), run_to_end(module, requests), module
