"""Assigns requests to workers."""

from __future__ import annotations

from collections.abc import Sequence

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.engine_client import EngineClient
from fastdeploy_lp.engine.errors import ProcessorUnavailableError
from fastdeploy_lp.engine.input_processor import EngineRequest
from fastdeploy_lp.engine.routing import Router
from fastdeploy_lp.logits_processor import Selection


class WorkerChoice:
    """Filters workers that can run a request; the router then chooses by prompt and load."""

    def __init__(self, fd_config: FDConfig, workers: Sequence[EngineClient], router: Router) -> None:
        self._restart = fd_config.supervision_config.restart
        self._workers = workers
        self._router = router

    def choose(self, requests: Sequence[EngineRequest]) -> list[int]:
        """Returns a worker's index for each request; requests chosen together count as load for each other.

        Raises as `Engine.generate` does if a request is not accepted.
        """
        added = [0] * len(self._workers)
        chosen = []
        for each in requests:
            usable = self._usable(each.settled.sampled_with)
            loads = [
                worker.num_in_flight + more if worker in usable else None
                for worker, more in zip(self._workers, added, strict=True)
            ]
            index = self._router.choose(each.prompt.token_ids, loads)
            added[index] += each.num_sequences
            chosen.append(index)
        return chosen

    def _usable(self, selection: Selection | None) -> list[EngineClient]:
        """Returns the ready workers that have the processors in service, or all such workers if none is ready."""
        if not self._restart:
            for each in self._workers:
                each.require_alive()
        alive = [each for each in self._workers if each.is_alive]
        if selection is not None:
            alive = _in_service(alive, selection)
        return [each for each in alive if each.is_ready] or alive


def _in_service(workers: Sequence[EngineClient], selection: Selection) -> list[EngineClient]:
    """Returns the workers with a request's processors in service; raises ProcessorUnavailableError if none has them."""
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
