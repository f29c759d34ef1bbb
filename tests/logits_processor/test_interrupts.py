"""A KeyboardInterrupt out of a processor's code: the user's where SIGINT raises one, else the processor's."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest
import uvloop

from fastdeploy_lp.logits_processor.errors import EscapedError, contained


@pytest.mark.usefixtures("as_at_a_terminal")
def test_it_is_the_users_in_a_main_thread() -> None:
    with pytest.raises(KeyboardInterrupt):
        contained(KeyboardInterrupt())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_is_the_processors_in_a_server(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Its loop hears of SIGINT, so that none raises."""

    async def server() -> Exception:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, loop.stop)
        try:
            return contained(KeyboardInterrupt())
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    loop = new_loop()
    try:
        assert isinstance(loop.run_until_complete(server()), EscapedError)
    finally:
        loop.close()


def test_it_is_the_processors_in_another_thread() -> None:
    found: list[Exception] = []
    thread = threading.Thread(target=lambda: found.append(contained(KeyboardInterrupt())))
    thread.start()
    thread.join()
    assert isinstance(found[0], EscapedError)
