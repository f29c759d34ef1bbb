"""One part of `gpu_check.py`, in a worker's environment: `gpu_part.py PART MODEL CASES FOLDER` writes into FOLDER."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_chain
import numpy as np
import paddle
from gpu_audit import READ, STEP
from paddle import profiler

from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore

AUDITED_STEPS, TIMED_STEPS = 20, 50
BATCHES = (1, 8, 32)
PROMPT_TOKENS = 64


def golden(model: str, cases: Path, folder: Path) -> None:
    """The greedy tokens of every case, together in one batch."""
    wanted = json.loads(cases.read_text())["cases"]
    engine = _engine(model, len(wanted))
    lengths = [len(_answer(case)) for case in wanted]
    requests = [
        _request(str(index), case["prompt_ids"], length)
        for index, (case, length) in enumerate(zip(wanted, lengths, strict=True))
    ]
    found: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for step in engine.step().steps:
            found[step.request_id] += step.token_ids
    answers = [[found[str(index)], _answer(case)] for index, case in enumerate(wanted)]
    (folder / "golden.json").write_text(json.dumps(answers))


def chain(_model: str, _cases: Path, folder: Path) -> None:
    """Results of builtins and sampler on fixed logits."""
    np.savez(folder / "chain.npz", **gpu_chain.outcome())  # type: ignore[arg-type]


def audit(model: str, _cases: Path, folder: Path) -> None:
    """A trace of steps in which sequences generate, with and without a processor and random draws.

    First one sequence alone, drawn by top-p: operators may treat a single row in another way.
    """
    engine = _engine(model, 8, ["LogitBiasLogitsProcessor"])
    targets = [profiler.ProfilerTarget.CPU]
    if paddle.is_compiled_with_cuda():
        targets.append(profiler.ProfilerTarget.GPU)
    export = profiler.export_chrome_tracing(str(folder), worker_name="audit")
    some_tensor = paddle.ones([8])
    with profiler.Profiler(targets=targets, on_trace_ready=export):
        # The functions that Paddle calls for a read, to compare with the calls of a step.
        with profiler.RecordEvent(READ):
            some_tensor.numpy()
        for entering in ([1], [0, *range(2, 8)]):
            for index in entering:
                engine.add(_random_request(index, 2 * AUDITED_STEPS + 16))
            for _ in range(4):  # the prompts, and whatever happens only once
                engine.step()
            for index in range(AUDITED_STEPS):
                with profiler.RecordEvent(f"{STEP} {index}"):
                    engine.step()


def speed(model: str, _cases: Path, folder: Path) -> None:
    """Milliseconds of a step in which so many sequences generate."""
    found = {}
    for batch in BATCHES:
        engine = _engine(model, batch)
        for index in range(batch):
            engine.add(_random_request(index, TIMED_STEPS + 8))
        for _ in range(4):
            engine.step()
        began = time.perf_counter()
        for _ in range(TIMED_STEPS):
            engine.step()
        found[batch] = 1000 * (time.perf_counter() - began) / TIMED_STEPS
        del engine
    (folder / "speed.json").write_text(json.dumps(found))


PARTS: dict[str, Callable[[str, Path, Path], None]] = {
    "golden": golden,
    "chain": chain,
    "audit": audit,
    "speed": speed,
}


def _engine(model: str, slots: int, processors: Sequence[str] = ()) -> EngineCore:
    args = EngineArgs(
        model=model,
        max_num_seqs=slots,
        max_model_len=256,
        max_num_batched_tokens=2048,
        logits_processors=list(processors),
    )
    fd_config = args.create_fd_config(show_progress=False)

    def build_chain() -> LogitsProcessorChain:
        return LogitsProcessorChain(load_processors(processors), fd_config)

    return EngineCore(fd_config, build_chain)


def _answer(case: dict[str, Any]) -> list[int]:
    answer: list[int] = case.get("output_ids") or case["greedy_ids"]
    return answer


def _request(name: str, prompt: Sequence[int], max_tokens: int, **params: Any) -> AddRequest:
    flat = params.pop("flat", {})
    sampling = SettledParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **params})
    return AddRequest(name, list(prompt), sampling, Selection(flat=flat))


def _random_request(index: int, max_tokens: int) -> AddRequest:
    prompt = np.random.default_rng(index).integers(10, 400, PROMPT_TOKENS).tolist()
    if index % 2:
        return _request(str(index), prompt, max_tokens, temperature=0.8, top_p=0.9, seed=index)
    return _request(str(index), prompt, max_tokens, flat={"logit_bias": {20: 2.0}} if index % 4 else {})


def main(part: str, model: str, cases: str, folder: str) -> None:
    """Runs one part on the platform's device."""
    paddle.set_device(current_platform().device_type)
    PARTS[part](model, Path(cases), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
