"""Renders chat templates sent with requests in isolated processes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastdeploy_lp.engine.chat_template import ChatOptions
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.helpers.frame_process import start_whole
from fastdeploy_lp.engine.helpers.turns import MAX_WAITING, Turns
from fastdeploy_lp.request.limits import REQUEST_TEMPLATE_BYTES, REQUEST_TEMPLATE_SECONDS

MODULE = "fastdeploy_lp.engine.helpers.template_process"
# Concurrent processes; each uses a core.
PROCESSES = 2
# Steps of the worker have priority when there are fewer cores than processes.
NICENESS = 10
# Wall-clock limit as a multiple of the CPU time limit, for a busy machine.
PATIENCE = 10


class TemplateSandbox:
    """Renders each template in a separate process with limited time and memory; used from one event loop.

    jinja's sandbox blocks access to Python's internals but not endless expressions, such as a text repeated a billion
    times. The limits of the process end these.
    """

    def __init__(self, special_tokens: Mapping[str, str], most: int = MAX_WAITING) -> None:
        self._special_tokens = dict(special_tokens)
        self._turns = Turns(PROCESSES, "a process that renders their templates", most)

    @property
    def num_waiting(self) -> int:
        """Number of templates waiting for a process."""
        return self._turns.num_waiting

    async def render(self, messages: Sequence[Mapping[str, Any]], options: ChatOptions, client: str = "") -> str:
        """Renders the prompt with `options.chat_template`; raises InvalidRequestError, also for exceeded limits.

        Clients take turns. A cancelled caller leaves the queue, or ends its process, at once. Raises QueueFullError
        when too many wait.
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
        preexec_fn=partial(os.nice, NICENESS),
        # Not this process's environment, which may contain keys.
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
