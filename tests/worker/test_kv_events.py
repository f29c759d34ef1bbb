"""KV-cache events as a subscriber reads them: from a real socket, with structures of its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from support.server import free_port
from support.sequences import request, run_to_end, tiny_engine

from fastdeploy_lp.worker.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventPublisher

MILLISECONDS = 10_000


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


def subscribe(context: zmq.Context[Any], port: int, topic: bytes = b"") -> zmq.Socket[bytes]:
    """A subscriber; it hears nothing before the publisher has heard of it."""
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, topic)
    subscriber.rcvtimeo = MILLISECONDS
    subscriber.connect(f"tcp://127.0.0.1:{port}")
    return subscriber


def connected(context: zmq.Context[Any], publisher: KVEventPublisher, port: int) -> zmq.Socket[bytes]:
    """A subscriber that hears everything from now on; what it heard until then is read."""
    subscriber = subscribe(context, port)
    deadline = time.monotonic() + MILLISECONDS / 1000
    while not subscriber.poll(20):
        assert time.monotonic() < deadline
        publisher.publish([AllBlocksCleared()])
    while subscriber.poll(200):
        subscriber.recv_multipart()
    return subscriber


def test_messages_are_what_vllms_subscribers_read(context: zmq.Context[Any]) -> None:
    port = free_port()
    publisher = KVEventPublisher(context, port)
    subscriber = connected(context, publisher, port)
    before = time.time()
    publisher.publish([BlockStored([2**64 - 1, 5], None, [1, 2, 3, 4], 2), BlockStored([6], 5, [7, 8], 2)])
    publisher.publish([])
    publisher.publish([BlockRemoved([6, 5]), AllBlocksCleared()])
    (topic, number, payload), (_, next_number, second) = subscriber.recv_multipart(), subscriber.recv_multipart()
    assert topic == b"kv-events"
    assert int.from_bytes(next_number, "big") == int.from_bytes(number, "big") + 1
    assert len(number) == 8
    stamp, events, rank = msgspec.msgpack.decode(payload)
    assert before <= stamp <= time.time()
    assert rank == 0
    assert events == [
        ["BlockStored", [2**64 - 1, 5], None, [1, 2, 3, 4], 2, None, None, None],
        ["BlockStored", [6], 5, [7, 8], 2, None, None, None],
    ]
    assert msgspec.msgpack.decode(second)[1] == [["BlockRemoved", [6, 5], None], ["AllBlocksCleared"]]
    publisher.close()


def test_the_first_message_clears_what_was_known_of_an_earlier_process(context: zmq.Context[Any]) -> None:
    port = free_port()
    # It waits for the publisher, and reconnects by itself; XPUB tells when it has.
    publisher = KVEventPublisher(context, port)
    sent: list[list[bytes]] = []
    publisher._socket.send_multipart = lambda parts: sent.append(list(parts))  # type: ignore[assignment,method-assign]
    publisher.publish([BlockRemoved([1])])
    publisher.publish([BlockRemoved([2])])
    kinds = [[event[0] for event in msgspec.msgpack.decode(payload)[1]] for _, _, payload in sent]
    assert kinds == [["AllBlocksCleared", "BlockRemoved"], ["BlockRemoved"]]
    assert [int.from_bytes(number, "big") for _, number, _ in sent] == [0, 1]
    publisher.close()


def test_a_subscriber_that_never_reads_holds_nobody_up(context: zmq.Context[Any]) -> None:
    port = free_port()
    publisher = KVEventPublisher(context, port)
    publisher._socket.sndhwm = 1
    connected(context, publisher, port)
    for _ in range(5000):
        publisher.publish([BlockStored([1], None, list(range(1000)), 1000)])
    publisher.close()


def test_a_port_in_use_is_told(context: zmq.Context[Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ValueError, match=f"cache_queue_port: cannot listen on 127.0.0.1:{port}"):
            KVEventPublisher(context, port)


def test_an_engine_tells_what_it_stores_and_evicts_once() -> None:
    engine = tiny_engine(max_num_seqs=1, max_model_len=16, num_blocks=1 + 4, cache_queue_port=1)
    run_to_end(engine, [request("a", list(range(9)), max_tokens=1)])
    (stored,) = engine.take_cache_events()
    assert isinstance(stored, BlockStored)
    assert (stored.token_ids, stored.parent_block_hash, stored.block_size) == (list(range(8)), None, 4)
    run_to_end(engine, [request("a again", list(range(9)), max_tokens=1)])
    assert engine.take_cache_events() == []
    run_to_end(engine, [request("b", [50] * 14, max_tokens=1)])
    removed, other = engine.take_cache_events()
    assert isinstance(removed, BlockRemoved)
    assert isinstance(other, BlockStored)
    assert removed.block_hashes == stored.block_hashes[::-1]
    assert other.token_ids == [50] * 12


def test_an_engine_without_a_port_keeps_no_events() -> None:
    engine = tiny_engine(max_num_seqs=1, max_model_len=16)
    run_to_end(engine, [request("a", list(range(9)), max_tokens=1)])
    assert engine.take_cache_events() == []
