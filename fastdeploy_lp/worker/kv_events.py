"""KV-cache events, published to routers over ZeroMQ in vLLM's message format."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
import zmq

TOPIC = b"kv-events"
# Messages queued for a slow subscriber before it loses some; sequence numbers reveal the gap.
HIGH_WATER_MARK = 100_000
# Not 0: libzmq 4.3.5 aborts the process when a subscriber's connection breaks while its messages are discarded.
LINGER_MS = 100


class BlockStored(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Blocks whose keys and values are now shareable, each the child of the previous one.

    `token_ids` has `block_size` entries for each of `block_hashes`; `parent_block_hash` is None for a sequence's first
    block. The last three fields are vLLM's, for adapters and storage tiers that this server does not have.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None


class BlockRemoved(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Blocks that are no longer shareable."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """All blocks stored before are gone."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True, frozen=True):
    """The ordered events of one step of one worker; `ts` is wall-clock time in seconds since 1970."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int = 0


class CachePortError(ValueError):
    """The port for KV-cache events cannot be used."""


class KVEventPublisher:
    """A PUB socket on a loopback port; messages are [topic, sequence number (8 bytes, big-endian), msgpack of a batch].

    Publishing never waits: messages that a subscriber cannot take are dropped for it. The first message begins with
    AllBlocksCleared, for subscribers that knew an earlier process on the same port.

    Raises CachePortError when the port cannot be listened on.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], port: int, data_parallel_rank: int = 0) -> None:
        self._rank = data_parallel_rank
        self._socket = context.socket(zmq.PUB)
        self._socket.sndhwm = HIGH_WATER_MARK
        self._socket.linger = LINGER_MS
        try:
            self._socket.bind(f"tcp://127.0.0.1:{port}")
        except zmq.ZMQError as error:
            self._socket.close()
            raise CachePortError(f"cache_queue_port: cannot listen on 127.0.0.1:{port}: {error}") from None
        self._encoder = msgspec.msgpack.Encoder()
        self._sent = 0

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Sends the events of a step as one message; sends nothing without events."""
        if not events:
            return
        told = [AllBlocksCleared(), *events] if self._sent == 0 else list(events)
        payload = self._encoder.encode(KVEventBatch(time.time(), told, self._rank))
        self._socket.send_multipart([TOPIC, self._sent.to_bytes(8, "big"), payload])
        self._sent += 1

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
