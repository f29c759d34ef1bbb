"""Chat templates that came with requests, rendered where they can do no harm."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fastdeploy_lp.engine.chat_template import ChatOptions
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.subprocesses import start_whole
from fastdeploy_lp.engine.turns import MAX_WAITING, Turns
from fastdeploy_lp.request_limits import REQUEST_TEMPLATE_BYTES, REQUEST_TEMPLATE_SECONDS

MODULE = "fastdeploy_lp.engine.template_process"
# At a time; each takes a core.
PROCESSES = 2
# Times as long by the clock as on the processor, which a busy machine may need.
PATIENCE = 10


class TemplateSandbox:
    """Renders each template in a process of its own, bounded in time and memory; lives on one event loop.

    jinja's sandbox keeps a template from Python's internals but not from expressions that compute without end, such as
    a text repeated a billion times. Those end with their process.
    """

    def __init__(self, special_tokens: Mapping[str, str], most: int = MAX_WAITING) -> None:
        self._special_tokens = dict(special_tokens)
        self._turns = Turns(PROCESSES, "a process that renders their templates", most)

    @property
    def num_waiting(self) -> int:
        """Templates that wait for a process."""
        return self._turns.num_waiting

    async def render(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions, client: str = "") -> str:
        """The prompt by `options.chat_template`; raises InvalidRequestError, also for what takes too much.

        Clients take turns. A caller that is cancelled leaves the queue, or ends its process, at once. Raises
        QueueFullError when too many wait.
        """
        job = {
            "messages": list(messages),
            "options": dataclasses.asdict(options),
            "special_tokens": self._special_tokens,
        }
        await self._turns.take(client)
        try:
            output = await _output_of_process(json.dumps(job).encode())
        finally:
            self._turns.give_back()
        try:
            result = json.loads(output)
        except ValueError:
            reason = f"rendering it took more than {REQUEST_TEMPLATE_BYTES} bytes of memory"
            raise InvalidRequestError("chat_template", reason) from None
        if "text" not in result:
            raise InvalidRequestError(result["param"], result["reason"])
        text: str = result["text"]
        return text


async def _output_of_process(job: bytes) -> bytes:
    process = await start_whole(
        *(sys.executable, "-m", MODULE, str(REQUEST_TEMPLATE_SECONDS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        # Nothing of this process's own environment, which may hold keys.
        env={"PYTHONPATH": os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))},
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(job), PATIENCE * REQUEST_TEMPLATE_SECONDS)
    except asyncio.TimeoutError:
        raise _takes_too_long() from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == -signal.SIGXCPU:
        raise _takes_too_long()
    return output


def _takes_too_long() -> InvalidRequestError:
    reason = f"takes more than {REQUEST_TEMPLATE_SECONDS:g} seconds of a processor's time to render"
    return InvalidRequestError("chat_template", reason)
