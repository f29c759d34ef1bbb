"""Inter-token time of streams beside requests whose processors look something up first (`prepare`).

Streams run all the time; beside them, short requests arrive at a fixed rate, in rounds that take turns: with a
processor without `prepare`, and with one whose `prepare` takes 20 ms, hangs, or blocks its thread. Each kind is
compared with the rounds without `prepare` before and after its own. ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from fastdeploy_lp import AsyncLLM, SamplingParams
from fastdeploy_lp.logits_processor import LogitsProcessor, PrepareRequest
from fastdeploy_lp.request.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig

BASE, KINDS = "none", ("20 ms", "hangs", "blocks")
PROMPT = "The river"


class Plain(LogitsProcessor):
    """Changes nothing, and prepares nothing."""

    class Params(BaseModel):
        """kind: what its `prepare` does."""

        kind: str

    only_with_args = True

    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Does nothing."""

    def apply(self, logits: Tensor) -> Tensor:
        """Returns the logits."""
        return logits


class Looks(Plain):
    """Looks something up for each request."""

    prepare_timeout: ClassVar[float] = 2.0
    prepare_late: ClassVar[str] = "skip"

    @classmethod
    async def prepare(cls, request: PrepareRequest) -> int:
        """Takes 20 ms, hangs or blocks its thread."""
        if request.args["kind"] == "hangs":
            await asyncio.Event().wait()
        if request.args["kind"] == "blocks":
            time.sleep(60)
        await asyncio.sleep(0.02)
        return 1


class Streams:
    """Streams that begin again as soon as they end; `gaps` are the seconds between their tokens since `clear`."""

    def __init__(self, llm: AsyncLLM, count: int) -> None:
        self._llm = llm
        self.gaps: list[float] = []
        self.begun = asyncio.Event()
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(count)]

    async def stop(self) -> None:
        """Ends the streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, number: int) -> None:
        params = SamplingParams(
            temperature=0, max_tokens=1000, ignore_eos=True, seed=number, output_kind=RequestOutputKind.DELTA
        )
        while True:
            last = None
            async for _ in self._llm.generate(PROMPT, params):
                now = time.perf_counter()
                if last is not None:
                    self.gaps.append(now - last)
                    self.begun.set()
                last = now


async def beside(llm: AsyncLLM, streams: Streams, kind: str, rate: float, seconds: float) -> float:
    """Returns the mean inter-token time of the streams in a round, in ms."""
    name = "Plain" if kind == BASE else "Looks"
    params = SamplingParams(temperature=0, max_tokens=1, logits_processors={name: {"kind": kind}})

    async def one() -> None:
        async for _ in llm.generate(PROMPT, params):
            pass

    streams.gaps = []
    asked = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        asked.append(asyncio.create_task(one()))
        await asyncio.sleep(1 / rate)
    found = 1000 * statistics.fmean(streams.gaps)
    ends = await asyncio.gather(*asked, return_exceptions=True)
    failed = sum(isinstance(end, Exception) for end in ends)
    if failed and kind != "blocks":
        raise RuntimeError(f"{failed} of {len(ends)} requests failed: {ends}")
    return found


async def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """Returns, by kind, the ratio of each of its rounds to the rounds around it."""
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    llm = AsyncLLM(options.model, logits_processors=[Plain, Looks], max_num_seqs=options.streams + 8)
    await llm.start()
    streams = Streams(llm, options.streams)
    try:
        await streams.begun.wait()
        await beside(llm, streams, BASE, options.rate, options.seconds)
        before = await beside(llm, streams, BASE, options.rate, options.seconds)
        for _ in range(options.rounds):
            for kind in KINDS:
                found = await beside(llm, streams, kind, options.rate, options.seconds)
                after = await beside(llm, streams, BASE, options.rate, options.seconds)
                ratios[kind].append(2 * found / (before + after))
                before = after
    finally:
        await streams.stop()
        await llm.shutdown()
    return ratios


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rate", type=float, default=4.0, help="short requests a second")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a round")
    return parser.parse_args(given)


def main() -> None:
    """Prints a line for each kind."""
    for kind, ratios in asyncio.run(measure(arguments())).items():
        spread = ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
        print(f"{kind}: median {statistics.median(ratios):.3f} of the time without prepare ({spread})")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
