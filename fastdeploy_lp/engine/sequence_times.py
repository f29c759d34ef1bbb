"""Lifecycle timestamps of a sequence (host-wide monotonic clock)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SequenceTimes:
    """Timestamps in seconds; None before the event.

    `scheduled` is the time of the sequence's first slot, as the worker reports it. The vector of a pooled prompt counts
    as its last token; it has no first one.
    """

    arrival: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None

    def begin(self) -> None:
        """Clears all timestamps except the arrival."""
        self.scheduled = self.first_token = self.last_token = None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return _between(self.arrival, self.first_token)

    @property
    def queue(self) -> float | None:
        """Seconds from arrival to a slot."""
        return _between(self.arrival, self.scheduled)

    @property
    def prefill(self) -> float | None:
        """Seconds from a slot to the first token."""
        return _between(self.scheduled, self.first_token)

    @property
    def decode(self) -> float | None:
        """Seconds from the first token to the last one so far."""
        return _between(self.first_token, self.last_token)

    @property
    def inference(self) -> float | None:
        """Seconds from a slot to the last token so far."""
        return _between(self.scheduled, self.last_token)

    def time_per_output_token(self, num_tokens: int) -> float | None:
        """Returns the mean seconds between `num_tokens` tokens; None for fewer than two."""
        decode = self.decode
        return None if decode is None or num_tokens < 2 else decode / (num_tokens - 1)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
