"""KV-cache events as a subscriber reads them: from a real socket, with structures of its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq
from support.sequences import request, run_to_end, tiny_engine
from support.server import free_port

from fastdeploy_lp.worker.kv_events import (
    HIGH_WATER_MARK,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CachePortError,
    KVEventPublisher,
)

MILLISECONDS = 10_000


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


@contextmanager
def connected(context: zmq.Context[Any], publisher: KVEventPublisher, port: int) -> Iterator[zmq.Socket[bytes]]:
    """A subscriber that hears everything from now on; what it heard until then is read."""
    with context.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(b"")
        subscriber.rcvtimeo = MILLISECONDS
        subscriber.connect(f"tcp://127.0.0.1:{port}")
        deadline = time.monotonic() + MILLISECONDS / 1000
        while not subscriber.poll(20):
            assert time.monotonic() < deadline
            publisher.publish([AllBlocksCleared()])
        while subscriber.poll(200):
            subscriber.recv_multipart()
        yield subscriber


def test_messages_are_what_vllms_subscribers_read(context: zmq.Context[Any]) -> None:
    port = free_port()
    publisher = KVEventPublisher(context, port)
    before = time.time()
    with connected(context, publisher, port) as subscriber:
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


def test_a_subscriber_that_never_reads_holds_nobody_up(context: zmq.Context[Any]) -> None:
    port = free_port()
    publisher = KVEventPublisher(context, port)
    with connected(context, publisher, port):
        # More than the socket keeps for it.
        for number in range(HIGH_WATER_MARK + 10_000):
            publisher.publish([BlockRemoved([number])])
    publisher.close()


def test_a_port_in_use_is_told(context: zmq.Context[Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(CachePortError, match=f"cache_queue_port: cannot listen on 127.0.0.1:{port}"):
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
