"""Which of several workers takes a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.engine_client import EngineClient
from fastdeploy_lp.engine.errors import ProcessorUnavailableError
from fastdeploy_lp.engine.routing import Router
from fastdeploy_lp.logits_processor import Selection


@dataclass(frozen=True)
class Candidate:
    """What of a request matters: its prompt, how many sequences it has, and the logits processors that it uses."""

    token_ids: Sequence[int]
    n: int = 1
    selection: Selection | None = None


class WorkerChoice:
    """Asks the router, who knows prompts and loads alone, among the workers that can take a request at all."""

    def __init__(self, fd_config: FDConfig, workers: Sequence[EngineClient], router: Router) -> None:
        self._restart = fd_config.supervision_config.restart
        self._workers = workers
        self._router = router

    def choose(self, candidates: Sequence[Candidate]) -> list[int]:
        """A worker's index for each request; they are sent together, and so count as load for each other.

        Raises what says that a request is not taken, as `Engine.generate` does.
        """
        added = [0] * len(self._workers)
        chosen = []
        for each in candidates:
            usable = self._usable(each.selection)
            loads = [
                worker.num_in_flight + more if worker in usable else None
                for worker, more in zip(self._workers, added, strict=True)
            ]
            index = self._router.choose(each.token_ids, loads)
            added[index] += each.n
            chosen.append(index)
        return chosen

    def _usable(self, selection: Selection | None) -> list[EngineClient]:
        """Workers that have the processors in service: those that are ready, or all when none is."""
        if not self._restart:
            for each in self._workers:
                each.require_alive()
        alive = [each for each in self._workers if each.is_alive]
        if selection is not None:
            alive = _in_service(alive, selection)
        return [each for each in alive if each.is_ready] or alive


def _in_service(workers: Sequence[EngineClient], selection: Selection) -> list[EngineClient]:
    """Those that have a request's processors in service; raises ProcessorUnavailableError when none has."""
    found, refusal = [], None
    for each in workers:
        try:
            each.processors.require_in_service(selection)
            found.append(each)
        except ProcessorUnavailableError as error:
            refusal = error
    if refusal is not None and not found:
        raise refusal
    return found
