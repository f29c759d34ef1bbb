"""A request's use of logits processors: its check against the declared ones, and the operator's part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from fastdeploy_lp.logits_processor.arguments.forms import (
    NAMED,
    Entering,
    FlatArgs,
    FlatArgsReader,
    MandatoryOrder,
    NamedEntry,
    RequestedPlace,
    named_entries,
    require_sendable,
    settled_args,
    unwatched,
)
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor, Selection
from fastdeploy_lp.logits_processor.dialects.base import ModelFacts
from fastdeploy_lp.logits_processor.errors import (
    LogitsProcessorSpecError,
    RequestArgsError,
    contained,
    described,
    printed,
)
from fastdeploy_lp.logits_processor.registry import load_brought
from fastdeploy_lp.logits_processor.stages import DRAW
from fastdeploy_lp.logits_processor.token_arguments import PHRASES, VOCAB_SIZE, Encode, PhraseEncoder
from fastdeploy_lp.model_tokenizer import ModelTokenizer
from fastdeploy_lp.request.phase import NO_PARTS, Parts, Phase, PhaseError, phase_of
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.request.suggestion import did_you_mean

SHADOW = "logits_processors_shadow"


class Imposed(msgspec.Struct, frozen=True):
    """Processors that the operator sets for a request, and processors that do not exist for its client.

    forced: arguments by name of processors that run whatever the request asks for. default: arguments by name of
    processors that run unless the request names processors or passes one of their arguments; one that draws also yields
    to the request's own. withheld: names of processors that the request cannot use. max_tokens: at most this many
    tokens for each completion. brought: SPECs by name of processors that exist for this client only, which has uploaded
    them.

    Arguments are those of a validated `Selection`.
    """

    forced: dict[str, dict[str, Any]] = {}
    default: dict[str, dict[str, Any]] = {}
    withheld: tuple[str, ...] = ()
    max_tokens: int | None = None
    brought: dict[str, str] = {}

    @property
    def secret(self) -> tuple[str, ...]:
        """Names that do not exist for the client."""
        return tuple(sorted({*self.withheld, *self.forced}))

    def on(self, selection: Selection, declared: Sequence[DeclaredProcessor]) -> Selection:
        """Returns a selection, validated without the secret processors, with the imposed ones.

        An imposed processor runs after all of the request's processors that are declared before it.
        """
        imposed = dict(self.forced)
        if selection.named is None:
            drawn = any(each.draws_for(selection) for each in declared)
            imposed |= {
                each.name: self.default[each.name]
                for each in declared
                if each.name in self.default
                and not any(map(each.takes, selection.flat))
                and not (drawn and each.stage == DRAW)
            }
        if not imposed and not self.secret:
            return selection
        names = [each.name for each in declared]
        order = selection.order
        if order is not None:
            order = _with_imposed(order, [name for name in names if name in imposed], names)
        return msgspec.structs.replace(selection, imposed=imposed, secret=self.secret, order=order)


NOTHING_IMPOSED = Imposed()


def _with_imposed(order: Sequence[str], imposed: Sequence[str], declared: Sequence[str]) -> tuple[str, ...]:
    places: Mapping[str, int] = {name: place for place, name in enumerate(declared)}
    found = [name for name in order if name not in imposed]
    for name in imposed:
        # Uploads run before, so that they cannot undo an imposed processor.
        before = [place for place, other in enumerate(found) if places.get(other, -1) < places[name]]
        found.insert(before[-1] + 1 if before else 0, name)
    return tuple(found)


def require_one_draw(
    declared: Sequence[DeclaredProcessor],
    selection: Selection,
    path_of: Callable[[DeclaredProcessor, Selection], str | None] = lambda processor, selection: None,  # noqa: ARG005
) -> None:
    """Raises RequestArgsError if several processors would draw the request's tokens.

    path_of: returns the JSON path of a processor in the request. The error names only processors that exist for the
    client.
    """
    drawing = [processor for processor in declared if processor.draws_for(selection)]
    if len(drawing) < 2:
        return
    known = [processor for processor in drawing if processor.name not in selection.secret]
    path = path_of(known[-1], selection) if known else None
    names = " and ".join(processor.name for processor in known) or "the operator's processors"
    together = " together" if len(known) != 1 else ""
    raise RequestArgsError(path, f"{names} cannot be used{together}: only one processor can draw a request's tokens")


class RequestArgsValidator:
    """Turns a request's forms of selection (flat arguments, named processors) into one validated `Selection`.

    An error of a processor's own check refuses the request; an error other than ValueError becomes the refusal's cause.

    `encode` tokenizes the arguments that are phrases; without it, they must be token ids. `shadow` names
    the processors that run in shadow for every request. `tokenizer`: for processors whose constructors take one.
    `parts`: the parts of an output that the server can find, for phases.
    """

    def __init__(
        self,
        declared: Sequence[DeclaredProcessor],
        vocab_size: int,
        encode: Encode | None = None,
        *,
        shadow: Sequence[str] = (),
        tokenizer: ModelTokenizer | None = None,
        parts: Parts = NO_PARTS,
        brought: Mapping[str, str] | None = None,
    ) -> None:
        self._all = list(declared)
        self._brought = dict(brought or {})
        self._encode = encode
        self._tokenizer = tokenizer
        self._parts = parts
        # By the names that do not exist for a client.
        self._without: dict[tuple[str, ...], RequestArgsValidator] = {}
        self._declared = {processor.name: processor for processor in declared}
        self._with_own_code = [processor for processor in declared if processor.checks_with_own_code]
        self._always_in_shadow = tuple(shadow)
        self._facts = ModelFacts(vocab_size, tokenizer)
        self._context = {VOCAB_SIZE: vocab_size, PHRASES: PhraseEncoder(encode) if encode is not None else None}
        self._flat = FlatArgsReader(declared, self._context, shadow=shadow)
        self._order = MandatoryOrder(declared)

    def without(self, secret: tuple[str, ...]) -> RequestArgsValidator:
        """Returns the validator for clients for which these processors do not exist, also not in errors."""
        if not secret:
            return self
        if secret not in self._without:
            self._without[secret] = RequestArgsValidator(
                [each for each in self._all if each.name not in secret],
                self._facts.vocab_size,
                self._encode,
                shadow=[name for name in self._always_in_shadow if name not in secret],
                tokenizer=self._tokenizer,
                parts=self._parts,
            )
        return self._without[secret]

    def bringing(self, brought: Mapping[str, str]) -> RequestArgsValidator:
        """Returns the validator for a request that uses these uploaded processors, SPECs by name.

        They are the first of the chain: mandatory processors keep their place after them.
        """
        if not brought:
            return self
        found = []
        for name, spec in brought.items():
            try:
                found.append(load_brought(spec))
            except LogitsProcessorSpecError as error:
                raise RequestArgsError(NAMED, f"{name}: {error}") from None
        return RequestArgsValidator(
            [*found, *self._all],
            self._facts.vocab_size,
            self._encode,
            shadow=self._always_in_shadow,
            tokenizer=self._tokenizer,
            parts=self._parts,
            brought=brought,
        )

    def for_client(self, params: SamplingParams, imposed: Imposed) -> RequestArgsValidator:
        """Returns the validator of a request, with the processors that exist for its client."""
        named = names_in(params.logits_processors)
        used = {name: spec for name, spec in imposed.brought.items() if name in named}
        return self.without(imposed.secret).bringing(used)

    def validate_imposed(self, params: SamplingParams, imposed: Imposed, entering: Entering = unwatched) -> Selection:
        """Returns the selection of a request on which the operator imposes processors; raises RequestArgsError."""
        selection = imposed.on(self.for_client(params, imposed).validate(params, entering), self._all)
        require_one_draw(self._all, selection)
        return selection

    def authors_of(self, params: SamplingParams) -> frozenset[str]:
        """Returns the names of processors whose own code `validate` may run for this request."""
        chosen = params.logits_processors
        named = names_in(chosen)
        return frozenset(
            processor.name
            for processor in self._with_own_code
            if processor.mandatory or (processor.name in named if chosen is not None else _sees_flat(processor))
        )

    def validate(self, params: SamplingParams, entering: Entering = unwatched) -> Selection:
        """Returns the request's selection, with arguments of their final types; raises RequestArgsError.

        Values that cannot be sent to another process are refused before any author's code runs.
        """
        chosen = params.logits_processors
        flat = self._flat.read(params)
        entries = named_entries(chosen or {})
        if chosen is None:
            selection = Selection(flat=self._flat.settled(flat, entering), hidden=self._flat.hidden(flat))
        elif flat.values:
            reason = f"cannot stand beside {NAMED}; give every processor its own params there"
            raise RequestArgsError(flat.fields[0], reason)
        else:
            named = self._settle_entries(entries, entering)
            selection = Selection(named=named, when=self._phases(entries))
        paths = _Paths(flat, entries)
        self._ask_processors(params, selection, paths, entering)
        wanted = self._wanted_in_shadow(params, selection, entries)
        shadow = tuple(name for name in self._declared if name in wanted)
        # Only a list has an order; clients cannot rely on the order of an object's keys.
        order = self._own_order(entries, shadow) if isinstance(chosen, list) else None
        if order is None and self._brought:
            reached = [name for name, each in self._declared.items() if self._reaches(each, selection)]
            order = tuple(name for name in reached if name not in shadow)
        selection = msgspec.structs.replace(selection, order=order, shadow=shadow, brought=self._brought)
        require_one_draw(self._all, selection, paths.of)
        return selection

    def _settle_entries(self, entries: Sequence[NamedEntry], entering: Entering) -> dict[str, dict[str, Any]]:
        for entry in entries:
            require_sendable(entry.params, ".".join(entry.params_path))
        named: dict[str, dict[str, Any]] = {}
        for entry in entries:
            processor = self._declared.get(entry.name)
            if processor is None:
                raise RequestArgsError(".".join(entry.name_path), self._unknown_name(entry.name))
            if entry.name in named:
                reason = f"{entry.name} is named twice; the server can declare it a second time under an alias"
                raise RequestArgsError(".".join(entry.name_path), reason)
            entering(processor, ".".join(entry.params_path))
            named[entry.name] = self._settle_named(processor, entry.params, entry.params_path)
        return named

    def _phases(self, entries: Sequence[NamedEntry]) -> dict[str, Phase]:
        """Returns the phases of the entries that have one; raises RequestArgsError."""
        phases: dict[str, Phase] = {}
        for entry in entries:
            if entry.when is None:
                continue
            if self._declared[entry.name].mandatory:
                reason = f"{entry.name} is mandatory on this server; it sees every token of every request"
                raise RequestArgsError(entry.when_path, reason)
            try:
                phase = phase_of(entry.when, entry.when_path, self._parts, handles_text=self._encode is not None)
            except PhaseError as error:
                raise RequestArgsError(error.path, error.reason) from None
            if not phase.is_whole:
                phases[entry.name] = phase
        return phases

    def _own_order(self, entries: Sequence[NamedEntry], shadow: Sequence[str]) -> tuple[str, ...] | None:
        """Returns the order of a list, None if it is the declared one; raises RequestArgsError."""
        places = [RequestedPlace(each.name, ".".join(each.path)) for each in entries if each.name not in shadow]
        order = self._order.complete(places)
        return None if order == tuple(name for name in self._declared if name in order) else order

    def _wanted_in_shadow(
        self, params: SamplingParams, selection: Selection, entries: Sequence[NamedEntry]
    ) -> list[str]:
        """Returns the names that the request marks, and the names that the operator marks."""
        wanted = []
        for entry in entries:
            if entry.shadow:
                self._require_not_mandatory(entry.name, ".".join((*entry.path, "shadow")))
                wanted.append(entry.name)
        for index, name in enumerate(params.logits_processors_shadow or []):
            path = f"{SHADOW}.{index}"
            if not isinstance(name, str):
                raise RequestArgsError(path, "processor names are strings")
            if name not in self._declared:
                raise RequestArgsError(path, self._unknown_name(name))
            self._require_not_mandatory(name, path)
            if not self._reaches(self._declared[name], selection):
                raise RequestArgsError(path, f"this request does not use {name}; name it in {NAMED}, too")
            wanted.append(name)
        always = [name for name in self._always_in_shadow if self._reaches(self._declared[name], selection)]
        return [*wanted, *always]

    def _require_not_mandatory(self, name: str, path: str) -> None:
        if name in self._brought:
            raise RequestArgsError(path, f"{name} was uploaded; only declared processors can run in shadow")
        if self._declared[name].mandatory:
            raise RequestArgsError(path, f"{name} is mandatory on this server; no request can put it into shadow")

    def _reaches(self, processor: DeclaredProcessor, selection: Selection) -> bool:
        """Returns True if the processor may see the request."""
        if processor.dialect.by_name_only:
            return selection.named is not None and processor.name in selection.named
        return not processor.leaves_alone(selection)

    def _settle_named(
        self, processor: DeclaredProcessor, params: dict[str, Any], path: tuple[str, ...]
    ) -> dict[str, Any]:
        if processor.params_model is None:
            if not processor.dialect.by_name_only:
                _require_taken(processor, params, path)
            return params
        for name in params:
            if name not in processor.argument_names:
                guess = did_you_mean(name, sorted(processor.argument_names))
                known = ", ".join(sorted(processor.argument_names)) or "none"
                raise RequestArgsError(
                    ".".join((*path, name)), f"{processor.name} takes no such argument{guess}; known: {known}"
                )
        return settled_args(processor.params_model, params, self._context, path)

    def _ask_processors(self, params: SamplingParams, selection: Selection, paths: _Paths, entering: Entering) -> None:
        for processor in self._declared.values():
            if not processor.checks_requests or not self._reaches(processor, selection):
                continue
            seen = msgspec.structs.replace(params, extra_args=dict(selection.args_for(processor.name)) or None)
            path = paths.of(processor, selection)
            entering(processor, path)
            try:
                processor.validate(seen, self._facts)
            except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
                expected = isinstance(error, ValueError)
                reason = printed(error) if expected else described(contained(error))
                raise RequestArgsError(path, f"{processor.name}: {reason}") from (None if expected else error)

    def _unknown_name(self, name: str) -> str:
        if not self._declared:
            return f"{name!r} is not declared; start the server with --logits-processors"
        guess = did_you_mean(name, self._declared)
        return f"no logits processor of the name {name!r} is declared{guess}; declared are {', '.join(self._declared)}"


def names_in(chosen: Any) -> list[Any]:
    """Returns the names in a request's `logits_processors`; `validate` refuses entries that have none."""
    return [each.get("name") if isinstance(each, Mapping) else each for each in chosen or ()]


class _Paths:
    """JSON paths of the parts of a request that are meant for a processor."""

    def __init__(self, flat: FlatArgs, entries: Sequence[NamedEntry]) -> None:
        self._flat = flat
        self._entries = entries

    def of(self, processor: DeclaredProcessor, selection: Selection) -> str | None:
        """Returns the path of its entry, or of the field with its flat arguments; None if the request has neither."""
        if selection.named is not None:
            return next((".".join(entry.path) for entry in self._entries if entry.name == processor.name), NAMED)
        paths = self._flat.paths
        # A validated default has no path in the request.
        named = [name for name in selection.args_for(processor.name) if name in paths]
        own = [paths[name][0] for name in named if processor.takes(name)]
        return next(iter([*own, *self._flat.fields]), None)


def _sees_flat(processor: DeclaredProcessor) -> bool:
    return not processor.dialect.by_name_only


def _require_taken(processor: DeclaredProcessor, params: Mapping[str, Any], path: tuple[str, ...]) -> None:
    """Raises RequestArgsError for an argument that a processor without `Params` does not take."""
    for name in params:
        if not processor.takes(name):
            reason = f"{processor.name} takes no such argument: it has no Params and its code does not mention it"
            raise RequestArgsError(".".join((*path, str(name))), f"{reason} (accepts_any_args = True takes any)")
