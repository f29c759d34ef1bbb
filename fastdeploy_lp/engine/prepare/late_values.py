"""Values of processors' `prepare` for requests, and what follows without one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from fastdeploy_lp.engine.errors import ProcessorUnavailableError, QueueFullError, RequestFailedError, discreet
from fastdeploy_lp.engine.helpers.preparer import PreparationFailedError, Preparer
from fastdeploy_lp.engine.prepare.input_processor import Prompt
from fastdeploy_lp.logits_processor import DeclaredProcessor, PrepareRequest, Selection
from fastdeploy_lp.logits_processor.late_values import HOLD, SKIP, LateValue


class LateValues:
    """Adds the values that a request's processors find for it to its selection."""

    def __init__(self, declared: Sequence[DeclaredProcessor], preparer: Preparer) -> None:
        self._preparing = [(each, each.late_value) for each in declared if each.late_value is not None]
        self._preparer = preparer

    @property
    def idle(self) -> bool:
        """True if no processor has a `prepare`."""
        return not self._preparing

    def start(self) -> None:
        """Starts the process of the calls if any processor has a `prepare`."""
        if self._preparing:
            self._preparer.start()

    async def add(self, selection: Selection, prompt: Prompt) -> Selection:
        """Returns the selection of a prompt with the values, and without processors that are left out for lack of one.

        Raises ProcessorUnavailableError for a value that comes too late, RequestFailedError for one that cannot be
        found, and QueueFullError while too many requests wait for values.
        """
        wanted = [(each, late) for each, late in self._preparing if each.is_used_by(selection.in_shadow())]
        if not wanted:
            return selection
        tasks = [asyncio.ensure_future(self._value(each, late, selection, prompt)) for each, late in wanted]
        try:
            await asyncio.gather(*tasks)
        except RequestFailedError as error:
            raise discreet(error, selection.secret) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        found = {each.name: task.result() for (each, _), task in zip(wanted, tasks, strict=True)}
        for name, value in found.items():
            if value is _NO_VALUE:
                selection = selection.without(name)
        prepared = {name: value for name, value in found.items() if value is not _NO_VALUE}
        return msgspec.structs.replace(selection, prepared=prepared)

    async def close(self) -> None:
        """Ends the process of the calls."""
        await self._preparer.close()

    async def _value(self, processor: DeclaredProcessor, late: LateValue, selection: Selection, prompt: Prompt) -> Any:
        """Returns a processor's value, `_NO_VALUE` if the request runs without the processor."""
        args = dict(selection.in_shadow().args_for(processor.name))
        name = f"logits processor {processor.name}"
        optional = not (processor.mandatory or processor.name in selection.imposed)
        in_shadow = processor.name in selection.shadow and processor.name not in selection.imposed
        skips = in_shadow or (late.late == SKIP and optional)
        error: RequestFailedError
        try:
            # The start of the process is no part of the call.
            await self._preparer.ready()
            call = self._preparer.value(processor.name, PrepareRequest(args, prompt.text, prompt.token_ids))
            return await asyncio.wait_for(call, None if late.late == HOLD else late.timeout)
        except asyncio.TimeoutError:
            error = ProcessorUnavailableError(f"{name}: its prepare took longer than {late.timeout:g} s")
        except PreparationFailedError as failed:
            error = RequestFailedError(f"{name}: its prepare failed: {failed}")
        except QueueFullError:
            if not skips:
                raise
            return _NO_VALUE
        if skips:
            return _NO_VALUE
        raise error


_NO_VALUE = object()
