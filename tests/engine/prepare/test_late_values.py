"""Values that processors' `prepare` finds, on a real process: in time, late, hanging, blocking, failing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.tiny import tiny_fd_config

from fastdeploy_lp.engine.errors import ProcessorUnavailableError, QueueFullError, RequestFailedError
from fastdeploy_lp.engine.helpers import preparer
from fastdeploy_lp.engine.helpers.preparer import MAX_BLOCKED, Preparer
from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.engine.prepare.preparation import LateValues
from fastdeploy_lp.logits_processor import LogitsProcessor, LogitsProcessorSpecError, Selection, load_processors

SPECS = [f"support.preparing:{name}" for name in ("LooksUp", "Skips", "Holds")]
PROMPT = Prompt([1, 2, 3], "the prompt")


@asynccontextmanager
async def late_values(*specs: str, most: int = 64, **options: Any) -> AsyncIterator[LateValues]:
    config = tiny_fd_config()
    config = replace(config, model_config=replace(config.model_config, skip_tokenizer_init=True))
    declared = load_processors([*specs, *SPECS], **options)
    made = LateValues(declared, Preparer(config, declared, most))
    made.start()
    try:
        yield made
    finally:
        await made.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


@pytest.fixture(scope="module")
def shared(loop: asyncio.AbstractEventLoop) -> Iterator[LateValues]:
    """On `loop`, for tests that do not end its process."""
    entered = late_values()
    yield loop.run_until_complete(entered.__aenter__())
    loop.run_until_complete(entered.__aexit__(None, None, None))


def asks(name: str, **args: Any) -> Selection:
    return Selection(named={name: args})


def found(selection: Selection, name: str) -> Any:
    return selection.args_for(name).prepared


def test_each_way_of_a_call_has_its_own_end(shared: LateValues, loop: asyncio.AbstractEventLoop) -> None:
    """All in one process and at the same time: no call changes the end of another."""

    async def scenario() -> None:
        wanted = {
            "finds": asks("LooksUp", word="word"),
            "finds late": asks("LooksUp", seconds=0.4),
            "hangs": asks("LooksUp", how="hangs"),
            "raises": asks("LooksUp", how="raises"),
            "large": asks("LooksUp", how="large"),
            "unsendable": asks("LooksUp", how="unsendable"),
            "skips": asks("Skips", how="hangs"),
            "skips a fault": asks("Skips", how="raises"),
            "holds": asks("Holds", seconds=0.8),
            "of none": asks("Other"),
        }
        adding = [shared.add(each, PROMPT) for each in wanted.values()]
        ends = dict(zip(wanted, await asyncio.gather(*adding, return_exceptions=True), strict=True))
        assert found(ends["finds"], "LooksUp") == {"token": 304, "tokens": 3}
        assert found(ends["finds late"], "LooksUp") == {"token": 301, "tokens": 3}
        assert found(ends["holds"], "Holds") == {"token": 301, "tokens": 3}
        assert isinstance(ends["hangs"], ProcessorUnavailableError)
        assert str(ends["hangs"]) == "logits processor LooksUp: its prepare took longer than 1.5 s"
        for name, reason in (
            ("raises", "LookupError: no such word"),
            ("large", "at most 131072"),
            ("unsendable", ""),
        ):
            error = ends[name]
            assert type(error) is RequestFailedError
            assert "logits processor LooksUp: its prepare failed: " in str(error)
            assert reason in str(error)
        for name in ("skips", "skips a fault"):
            left_out = ends[name]
            assert isinstance(left_out, Selection)
            assert all(not each.is_meant_for(left_out) for each in load_processors(SPECS))
            assert all(each.leaves_alone(left_out) for each in load_processors(SPECS))
        assert ends["of none"].prepared == {}

    loop.run_until_complete(scenario())


def test_the_process_loads_the_processors_with_a_prepare_alone() -> None:
    """Others may import torch, which takes seconds."""

    async def scenario() -> None:
        async with late_values("support.processors:Doubles") as values:
            modules = found(await values.add(asks("LooksUp", how="modules"), PROMPT), "LooksUp")
            assert modules == ["support.preparing"]

    run(scenario)


def test_a_processor_that_blocks_the_event_loop_fails_alone_and_in_the_end_is_called_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process ends, the other calls run in another one. Each new process costs seconds of a core."""
    # On a busy machine the processes take long to start.
    monkeypatch.setattr(preparer, "BLOCKED_MEMORY_SECONDS", 3600.0)

    async def scenario() -> None:
        async with late_values() as values:
            await values.add(asks("LooksUp"), PROMPT)
            blocks = asyncio.ensure_future(values.add(asks("Holds", how="blocks", seconds=0.1), PROMPT))
            holds = asyncio.ensure_future(values.add(asks("Holds", seconds=0.3), PROMPT))
            with pytest.raises(RequestFailedError, match="blocked its event loop for more than 1 s"):
                await blocks
            assert found(await holds, "Holds")["token"] == 301
            for _ in range(MAX_BLOCKED - 1):
                with pytest.raises(RequestFailedError, match="blocked its event loop"):
                    await values.add(asks("Holds", how="blocks"), PROMPT)
            with pytest.raises(RequestFailedError, match="3 calls have blocked the event loop lately"):
                await values.add(asks("Holds"), PROMPT)
            assert found(await values.add(asks("LooksUp"), PROMPT), "LooksUp")["token"] == 301

    run(scenario)


def test_a_cancelled_request_cancels_its_call() -> None:
    async def scenario() -> None:
        async with late_values(most=1) as values:
            held = asyncio.ensure_future(values.add(asks("Holds", how="hangs"), PROMPT))
            while not (await asyncio.gather(values.add(asks("Skips"), PROMPT)))[0].secret:
                await asyncio.sleep(0)
            with pytest.raises(QueueFullError, match="1 requests wait for their processors' values"):
                await values.add(asks("LooksUp"), PROMPT)
            held.cancel()
            with pytest.raises(asyncio.CancelledError):
                await held
            assert found(await values.add(asks("LooksUp"), PROMPT), "LooksUp")["token"] == 301

    run(scenario)


def test_what_is_mandatory_or_forced_is_never_left_out(shared: LateValues, loop: asyncio.AbstractEventLoop) -> None:
    async def scenario() -> None:
        async with late_values(mandatory=["Skips"]) as values:
            with pytest.raises(ProcessorUnavailableError, match="Skips: its prepare took longer"):
                await values.add(asks("Skips", seconds=30.0), PROMPT)
        forced = Selection(imposed={"Skips": {"seconds": 30.0}}, secret=("Skips",))
        with pytest.raises(ProcessorUnavailableError, match=r"^a logits processor of this server failed$"):
            await shared.add(forced, PROMPT)

    loop.run_until_complete(scenario())


def test_a_shadow_without_its_value_is_left_out(shared: LateValues, loop: asyncio.AbstractEventLoop) -> None:
    async def scenario() -> None:
        selection = Selection(named={"LooksUp": {"how": "raises"}}, shadow=("LooksUp",))
        assert (await shared.add(selection, PROMPT)).shadow == ()
        kept = await shared.add(Selection(named={"LooksUp": {}}, shadow=("LooksUp",)), PROMPT)
        assert found(kept.in_shadow(), "LooksUp")["token"] == 301
        assert found(kept, "LooksUp") is None

    loop.run_until_complete(scenario())


class Plain(LogitsProcessor):
    def update_state(self, share_inputs: Any) -> None: ...

    def apply(self, logits: Any) -> Any: ...


async def _instance_method(self: Any, request: Any) -> Any: ...


def _synchronous(cls: Any, request: Any) -> Any: ...


async def _fine(cls: Any, request: Any) -> Any: ...


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"prepare": _instance_method}, "must be an async class method"),
        ({"prepare": classmethod(_synchronous)}, "must be an async class method"),
        ({"prepare": classmethod(_fine), "prepare_timeout": 0}, "prepare_timeout must be more than 0"),
        ({"prepare": classmethod(_fine), "prepare_timeout": True}, "prepare_timeout must be more than 0"),
        ({"prepare": classmethod(_fine), "prepare_late": "wait"}, "prepare_late must be one of fail, skip, hold"),
    ],
    ids=["no class method", "not async", "zero", "bool", "unknown"],
)
def test_a_wrong_declaration_is_reported_before_the_start(members: dict[str, Any], reason: str) -> None:
    def init(self: Any, fd_config: Any) -> None: ...

    cls = type("Wrong", (Plain,), {"__init__": init, **members})
    with pytest.raises(LogitsProcessorSpecError, match=reason):
        load_processors(["Wrong"], {"Wrong": cls})
