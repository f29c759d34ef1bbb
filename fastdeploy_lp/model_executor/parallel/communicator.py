"""The interface through which ranks that share a model exchange tensors. Imports no Paddle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddle import Tensor


@dataclass(frozen=True)
class RankPlace:
    """Place of a rank: its number, the address of each rank, "host:port", and of the store where they meet."""

    rank: int
    endpoints: list[str]
    master: str

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.endpoints)


class Communicator(ABC):
    """One rank's end. Every rank makes the same calls in the same order, with tensors of the same shapes and types.

    Built as `cls(place)`, in the process of that rank, when all ranks are starting; `get_communicator_class` of the
    platform names the class. Calls raise RuntimeError when another rank is gone.
    """

    def __init__(self, place: RankPlace) -> None:
        self.rank = place.rank
        self.size = place.size

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' tensors, on every rank; may be computed in the memory of `x`."""

    @abstractmethod
    def gather(self, x: Tensor) -> list[Tensor]:
        """On rank 0 the tensors of all ranks, in their order; nothing on the others."""

    @abstractmethod
    def broadcast(self, x: Tensor) -> None:
        """Writes rank 0's tensor into the other ranks' tensors."""


class SingleRank(Communicator):
    """A model that is not shared: no communication."""

    def __init__(self) -> None:
        super().__init__(RankPlace(0, [""], ""))

    def all_reduce(self, x: Tensor) -> Tensor:
        """As it is."""
        return x

    def gather(self, x: Tensor) -> list[Tensor]:
        """The tensor itself."""
        return [x]

    def broadcast(self, x: Tensor) -> None:
        """Does nothing: there are no other ranks."""


SINGLE_RANK = SingleRank()
