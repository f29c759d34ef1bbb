"""Construction of a request's processors outside the steps, before the request takes a slot."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from fastdeploy_lp.logits_processor.actions import RequestActions
from fastdeploy_lp.logits_processor.chain.author_threads import AuthorCall
from fastdeploy_lp.logits_processor.chain.entry import ChainEntry
from fastdeploy_lp.logits_processor.chain.groups import ChainGroups, Order
from fastdeploy_lp.logits_processor.chain.shadow import ShadowChain
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor, Selection
from fastdeploy_lp.logits_processor.dialects.per_request import PerRequestProcessor, RowProcessor
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError, contained
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig


@dataclass(frozen=True)
class Built:
    """Result of one call: `entry` for a new order or shadow, `instance` for a processor with one instance a request.

    error: the reason why the instance could not be built; the request's first step reports it like any other fault.
    """

    entry: ChainEntry | None = None
    instance: RowProcessor | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class _Newcomer:
    """A request for which processors are built: its processors, the tokens of its prompt, and its seed."""

    selection: Selection
    prompt: Sequence[int]
    seed: int


class ChainBuilder:
    """Lists the constructor calls that a request needs, and installs their results.

    `calls` and `adopt` belong to the thread that runs the steps; the calls themselves may run in any thread. A
    request's instance is kept from `adopt` to `forget`, so that its state survives preemption. Before a processor's
    first such instance, a trial instance is called once on a row of zeros: a compilation in that call delays no step.
    """

    def __init__(
        self,
        declared: Mapping[str, DeclaredProcessor],
        fd_config: FDConfig,
        groups: ChainGroups,
        shadows: ShadowChain,
        new_entry: Callable[[str], ChainEntry],
        bring: Callable[[Selection], None],
    ) -> None:
        self._declared = declared
        self._vocab_size = fd_config.model_config.vocab_size
        self._first_calls = fd_config.structured_outputs_config.first_calls
        # Processors with a tried instance.
        self._tried: set[str] = set()
        self._trying: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._groups = groups
        self._shadows = shadows
        self._new_entry = new_entry
        self._bring = bring
        # By request, the entries that hold its instances.
        self._holders: dict[str, list[ChainEntry]] = {}

    def order_of(self, selection: Selection) -> Order:
        """Returns the order of the request's group, None for the main group.

        A request that names processors stays in the main group if the other processors leave it alone anyway.
        """
        if selection.order is not None:
            return selection.order
        if selection.named is None and not selection.shadow and not selection.secret:
            return None
        entries = self._groups.main.entries
        left_alone = [entry for entry in entries if entry.declared.leaves_alone(selection)]
        if all(entry.processor.only_with_args for entry in left_alone):
            return None
        return tuple(entry.name for entry in entries if entry not in left_alone)

    def is_known(self, order: Order) -> bool:
        """Returns True if a group of this order exists."""
        return self._groups.get(order) is not None

    def has_room_for(self, order: Order, building: Collection[Order]) -> bool:
        """Returns True if a request may use this order now, besides the orders in use and in `building`."""
        return self._groups.has_room_for(order, building)

    def calls(
        self, request_id: str, selection: Selection, prompt: Sequence[int] = (), seed: int = 0
    ) -> list[AuthorCall]:
        """Returns the constructor calls to make before the request can enter, one a processor, with `Built` results.

        Claims the group of its order, if there is one, for the request.
        """
        try:
            self._bring(selection)
        except LogitsProcessorSpecError as error:
            return [AuthorCall(name, partial(_raise, error)) for name in selection.brought]
        newcomer = _Newcomer(selection, prompt, seed)
        order = self.order_of(selection)
        group = self._groups.get(order)
        self._groups.claim(request_id, order)
        calls = []
        if group is None:
            for name in order or ():
                calls.append(self._call(name, None, newcomer))
        else:
            for entry in group.entries:
                if _holds_instances(entry) and entry.declared.is_meant_for(selection):
                    calls.append(self._call(entry.name, entry, newcomer))
        shadowed = replace(newcomer, selection=selection.in_shadow()) if selection.shadow else newcomer
        for name in selection.shadow:
            shadow = self._shadows.entry_of(name)
            if shadow is None:
                calls.append(self._call(name, None, shadowed, self._shadows.new_entry))
            elif _holds_instances(shadow):
                calls.append(self._call(name, shadow, shadowed))
        return calls

    def adopt(self, request_id: str, selection: Selection, built: Mapping[str, Built]) -> None:
        """Installs the results of the calls, by processor; `built` is empty for a request that needed none."""
        order = self.order_of(selection)
        group = self._groups.get(order)
        if group is None:
            entries = [built[name].entry or self._new_entry(name) for name in order or ()]
            group = self._groups.add(order, entries)
        self._groups.claim(request_id, order)
        if not built:
            return
        places = {entry.name: entry for entry in group.entries}
        for name in selection.shadow:
            if name in built and (built[name].entry is not None or self._shadows.entry_of(name) is not None):
                places[name] = self._shadows.adopt(name, built[name].entry)
        found = [(places[name], each) for name, each in built.items() if name in places]
        holders = [entry for entry, each in found if self._hand_over(request_id, entry, each)]
        if holders:
            self._holders[request_id] = holders

    def without(self, name: str, selection: Selection, error: BaseException) -> Built | None:
        """Returns the replacement for a failed call's result: empty for a shadow, None if the request cannot run."""
        if name in selection.shadow:
            self._shadows.could_not_build(name, error)
            return Built()
        return None

    def forget(self, request_id: str) -> None:
        """Drops the instances and the order claim of a finished request; does nothing for an unknown one."""
        self._groups.release(request_id)
        for entry in self._holders.pop(request_id, ()):
            if isinstance(entry.processor, PerRequestProcessor):
                entry.processor.forget(request_id)

    def forget_processor(self, name: str) -> None:
        """Drops what is known of a processor that is not declared any more."""
        self._tried.discard(name)
        self._trying.pop(name, None)

    def _call(
        self,
        name: str,
        entry: ChainEntry | None,
        newcomer: _Newcomer,
        new_entry: Callable[[str], ChainEntry] | None = None,
    ) -> AuthorCall:
        work = partial(self._build, name, entry, newcomer, new_entry)
        return AuthorCall(name, work, 0.0 if name in self._tried else self._first_calls)

    def _build(
        self,
        name: str,
        entry: ChainEntry | None,
        newcomer: _Newcomer,
        new_entry: Callable[[str], ChainEntry] | None = None,
    ) -> Built:
        selection = newcomer.selection
        made = entry or (new_entry or self._new_entry)(name)
        instance, failed = None, None
        if isinstance(made.processor, PerRequestProcessor) and self._declared[name].is_meant_for(selection):
            try:
                with made.recorded_build():
                    self._try_once(name, made.processor, selection.args_for(name))
                    args = selection.args_for(name)
                    instance = made.processor.instance_for(args, newcomer.prompt, newcomer.seed)
            except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
                failed = contained(error)
        return Built(made if entry is None else None, instance, failed)

    def _try_once(self, name: str, processor: PerRequestProcessor, args: ProcessorArgs) -> None:
        """Calls an instance that serves no request; errors are ignored, since they recur where they can be reported."""
        import paddle

        # Requests that arrive meanwhile wait: their first calls would compile the same in a step.
        with self._trying[name]:
            if name in self._tried:
                return
            self._tried.add(name)
            with suppress(BaseException), paddle.no_grad(), RequestActions() as dropped:
                processor.new_instance(args)([0], [], paddle.zeros([self._vocab_size]), dropped)

    @staticmethod
    def _hand_over(request_id: str, entry: ChainEntry, built: Built) -> bool:
        if not isinstance(entry.processor, PerRequestProcessor):
            return False
        entry.processor.adopt(request_id, built.instance, built.error)
        return True


def _raise(error: Exception) -> NoReturn:
    raise error


def _holds_instances(entry: ChainEntry) -> bool:
    return isinstance(entry.processor, PerRequestProcessor)
