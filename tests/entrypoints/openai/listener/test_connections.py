"""Connections on which nothing happens give way, those that carry requests do not."""

from __future__ import annotations

import asyncio

import pytest
from support.bounded_server import exchange, serving

from fastdeploy_lp.entrypoints.openai.listener import connections
from fastdeploy_lp.entrypoints.openai.listener.bounds import (
    MAX_BYTES_OF_HEADS,
    MOST_PER_CLIENT,
    ConnectionBounds,
    client_of,
    connection_bounds,
)

HALF_A_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost:"
HALF_A_BODY = HALF_A_HEAD + b" here\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, HALF_A_BODY], ids=["silent", "half a head", "half a body"])
def test_who_does_not_go_on_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.1)

    async def run() -> bytes:
        async def app(scope: object, receive: object, send: object) -> None:
            await asyncio.Event().wait()

        async with serving(app) as port:
            return await exchange(port, sent)

    assert asyncio.run(run()) == b""


class Peer:
    """A connection that records that it was told to end."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.gone = False

    def give_way(self) -> None:
        self.gone = True


def test_one_who_works_does_not_give_way() -> None:
    bounds = ConnectionBounds(limit=100, per_client=3)
    peers = [Peer("a") for _ in range(5)]
    for peer in peers[:3]:
        bounds.came(peer)
        bounds.works(peer)
    for peer in peers[3:]:
        bounds.came(peer)
    assert [peer.gone for peer in peers] == [False, False, False, True, True]
    for peer in peers[3:]:
        bounds.left(peer)
    bounds.rests(peers[1])
    another = Peer("a")
    bounds.came(another)
    assert [peer.gone for peer in [*peers[:3], another]] == [False, True, False, False]


@pytest.mark.parametrize(("limit", "most"), [(100_000, MOST_PER_CLIENT), (3000, 1500)])
def test_by_default_one_client_has_half_of_the_connections_or_a_number_that_is_handled_at_once(
    limit: int, most: int
) -> None:
    bounds = connection_bounds(limit, None)
    peers = [Peer("a") for _ in range(most + 1)]
    for peer in peers:
        assert not peers[0].gone
        bounds.came(peer)
    assert [peer.gone for peer in peers] == [True, *[False] * most]


def test_unfinished_heads_have_a_bound_over_all_connections() -> None:
    bounds = ConnectionBounds(limit=1000, per_client=1000)
    peers = [Peer(str(number)) for number in range(12)]
    for peer in peers:
        bounds.came(peer)
        bounds.holds_of_head(peer, 10)
        bounds.holds_of_head(peer, MAX_BYTES_OF_HEADS // 10)
    assert [peer.gone for peer in peers] == [True, True, *[False] * 10]
    bounds.holds_of_head(peers[2], 0)
    bounds.holds_of_head(peers[0], MAX_BYTES_OF_HEADS // 10)
    assert not peers[3].gone


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_an_ipv6_network_is_one_client(one: str, other: str, same: bool) -> None:
    assert (client_of(one) == client_of(other)) is same
