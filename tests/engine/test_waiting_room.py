"""Who has room, and who is told to come again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.config import SchedulerConfig
from fastdeploy_lp.engine.client.admission import ArrivalQueue, Outbox, WaitingRoom
from fastdeploy_lp.engine.errors import QueueFullError
from fastdeploy_lp.messages import AddRequest


class Arrivals:
    """A room of so many places, in which sequences stay."""

    def __init__(self, places: int, *, fair: bool) -> None:
        self.outbox = Outbox(lambda _: None, ArrivalQueue())
        self.room = WaitingRoom(SchedulerConfig(1, max_waiting_requests=places - 1), self.outbox, fair=fair)
        self.count = 0

    def come(self, client: str, count: int = 1) -> bool:
        """Whether a request for so many sequences is taken."""
        try:
            self.room.require(count, client, self.count)
        except QueueFullError:
            return False
        for _ in range(count):
            self.outbox.add(AddRequest(str(self.count), [1]), client)
            self.count += 1
        return True


@given(st.integers(1, 30), st.lists(st.integers(1, 10)))
def test_no_more_than_the_room_but_for_one_that_comes_alone(places: int, requests: list[int]) -> None:
    arrivals = Arrivals(places, fair=False)
    for count in requests:
        before = arrivals.count
        assert arrivals.come("a", count) == (before == 0 or before + count <= places)


def test_one_client_leaves_room_for_others_and_two_share_alike() -> None:
    arrivals = Arrivals(900, fair=True)
    first = sum(arrivals.come("a") for _ in range(900))
    assert first == 720
    second = sum(arrivals.come("b") for _ in range(900))
    assert second == 144
    assert arrivals.come("c")
    both = Arrivals(900, fair=True)
    taken = [(both.come("a"), both.come("b")) for _ in range(900)]
    assert [sum(each) for each in zip(*taken, strict=True)] == [400, 400]


@pytest.mark.parametrize("fair", [False, True])
def test_what_is_refused_says_which_options_decide(fair: bool) -> None:
    arrivals = Arrivals(20, fair=fair)
    while arrivals.come("a"):
        pass
    with pytest.raises(QueueFullError, match="fair_queue" if fair else "max_waiting_requests") as refused:
        arrivals.room.require(1, "a", arrivals.count)
    assert refused.value.retry_after >= 1
