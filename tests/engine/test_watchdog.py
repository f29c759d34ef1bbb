"""How long a worker with work has been silent."""

from __future__ import annotations

from fastdeploy_lp.engine.client.supervisor import Watchdog


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_silence_lasts_from_the_first_message_that_had_no_answer() -> None:
    clock = Clock()
    watchdog = Watchdog(clock)
    clock.now = 5.0
    assert watchdog.silence == 0.0
    watchdog.sent()
    clock.now = 7.0
    # Neither more work nor its end makes a hanging worker look alive.
    watchdog.sent()
    clock.now = 8.0
    assert watchdog.silence == 3.0


def test_every_message_ends_silence_and_begins_it_anew_while_there_is_work() -> None:
    clock = Clock()
    watchdog = Watchdog(clock)
    watchdog.sent()
    clock.now = 4.0
    watchdog.heard(busy=True)
    assert watchdog.silence == 0.0
    clock.now = 6.0
    assert watchdog.silence == 2.0
    watchdog.heard(busy=False)
    clock.now = 100.0
    assert watchdog.silence == 0.0
