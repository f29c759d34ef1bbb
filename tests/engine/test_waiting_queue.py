"""Whose turn it is: first come, first served, or clients by the tokens that they were given."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_lp.engine.client.admission import ArrivalQueue, FairQueue, WaitingQueue
from fastdeploy_lp.messages import AddRequest


def sequence(name: str, tokens: int = 1) -> AddRequest:
    return AddRequest(name, [0] * tokens)


def drained(queue: WaitingQueue) -> list[tuple[str, str]]:
    """What comes out, with its client."""
    out = []
    while len(queue):
        message, client = queue.pop()
        out.append((message.request_id, client))
    return out


@given(st.lists(st.sampled_from("abc")), st.sets(st.integers(0, 20)))
def test_arrivals_leave_in_order(clients: list[str], gone: set[int]) -> None:
    queue = ArrivalQueue()
    for number, client in enumerate(clients):
        queue.push(sequence(str(number)), client)
    for number in gone:
        queue.discard(str(number))
    assert drained(queue) == [(str(n), client) for n, client in enumerate(clients) if n not in gone]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50))), st.sets(st.integers(0, 20)))
def test_fairly_nothing_is_lost_and_each_client_keeps_its_order(pushed: list[tuple[str, int]], gone: set[int]) -> None:
    queue = FairQueue()
    for number, (client, tokens) in enumerate(pushed):
        queue.push(sequence(str(number), tokens), client)
    for number in gone:
        queue.discard(str(number))
    left = [(str(n), client) for n, (client, _) in enumerate(pushed) if n not in gone]
    out = drained(queue)
    assert sorted(out) == sorted(left)
    for client in "abc":
        assert [each for each in out if each[1] == client] == [each for each in left if each[1] == client]


@pytest.mark.parametrize("queue", [ArrivalQueue(), FairQueue()])
def test_an_empty_queue_says_so(queue: WaitingQueue) -> None:
    with pytest.raises(KeyError):
        queue.pop()


@given(st.integers(0, 2**32))
def test_clients_that_wait_are_given_equally_many_tokens(seed: int) -> None:
    """Up to what one sequence is, whatever their sizes, and however many sequences one of them has."""
    source, queue = random.Random(seed), FairQueue()
    largest, given_tokens = 40, {"few": 0, "many": 0}
    for number in range(60):
        queue.push(sequence(f"few-{number}", source.randint(1, largest)), "few")
    for number in range(600):
        queue.push(sequence(f"many-{number}", source.randint(1, largest)), "many")
    while sum(name.startswith("few") for name in queue._owners) > 1:
        message, client = queue.pop()
        output = source.randint(0, largest)
        queue.charge(client, output)
        given_tokens[client] += len(message.prompt_token_ids) + output
        assert abs(given_tokens["few"] - given_tokens["many"]) <= 2 * largest


def test_nobody_saves_up_tokens_while_it_asks_for_nothing() -> None:
    """A client that comes after others were given much goes first, and then takes turns."""
    queue = FairQueue()
    for number in range(40):
        queue.push(sequence(f"a-{number}", 10), "a")
    for _ in range(20):
        queue.pop()
    for number in range(20):
        queue.push(sequence(f"b-{number}", 10), "b")
    turns = "".join(client for _, client in drained(queue))
    assert turns in ("ab" * 20, "ba" * 20)


def test_one_that_left_last_is_the_measure_for_who_comes_next() -> None:
    queue = FairQueue()
    queue.push(sequence("a-0", 1000), "a")
    queue.pop()
    for number in range(5):
        queue.push(sequence(f"b-{number}", 10), "b")
        queue.push(sequence(f"a-{number}", 10), "a")
    turns = "".join(client for _, client in drained(queue))
    assert turns == "ba" * 5


@given(st.integers(0, 2**32))
def test_nobody_starves(seed: int) -> None:
    """A sequence that waits goes after a bounded number of others, however the other clients come and go."""
    source, queue, clients = random.Random(seed), FairQueue(), "abcd"
    for client in clients:
        queue.push(sequence(f"{client}-first", 10), client)
        queue.charge(client, source.randint(0, 100))
    queue.push(sequence("waits", 10), "z")
    for turn in range(4 * 100 + 1):
        message, _ = queue.pop()
        if message.request_id == "waits":
            return
        client = source.choice(clients)
        queue.push(sequence(f"{client}-{turn}", source.randint(1, 10)), client)
    pytest.fail("it still waits")
