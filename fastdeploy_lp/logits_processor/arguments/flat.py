"""Arguments that a request passes without naming processors, in any of the flat fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastdeploy_lp.logits_processor.arguments.values import require_sendable, settled_args
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.errors import RequestArgsError
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.suggestion import did_you_mean

Entering = Callable[[DeclaredProcessor, str | None], None]
"""Called with each processor whose check of a request begins, and with the JSON path that it checks."""

FLAT, EXTRA, BIAS = "logits_processors_args", "extra_args", "logit_bias"


def unwatched(processor: DeclaredProcessor, path: str | None) -> None:
    """Does nothing: the default `Entering`."""


@dataclass
class FlatArgs:
    """A request's flat arguments by name, and their JSON paths."""

    values: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def fields(self) -> list[str]:
        """Fields of the request that hold them, each once."""
        return list(dict.fromkeys(path[0] for path in self.paths.values()))


class FlatArgsReader:
    """Reads the flat fields of requests and checks them against the processors that see flat arguments.

    declared: the chain. context: for the `Params` models. shadow: names of processors that run in shadow for every
    request; OpenAI's `logit_bias` is for the first processor that is not one of them.
    """

    def __init__(
        self, declared: Sequence[DeclaredProcessor], context: dict[str, Any], *, shadow: Collection[str] = ()
    ) -> None:
        self._declared = declared
        self._seeing = [processor for processor in declared if not processor.dialect.by_name_only]
        self._shadow = frozenset(shadow)
        self._bias_takers = [processor for processor in self._seeing if _knows(processor, BIAS)]
        self._context = context

    def read(self, params: SamplingParams) -> FlatArgs:
        """Returns the arguments of all flat fields as they were sent; raises RequestArgsError."""
        args = FlatArgs()
        bias = {BIAS: params.logit_bias} if params.logit_bias else {}
        for source, given in ((FLAT, params.logits_processors_args), (EXTRA, params.extra_args), (None, bias)):
            for name, value in (given or {}).items():
                path = (source, str(name)) if source else (str(name),)
                if not isinstance(name, str):
                    raise RequestArgsError(".".join(path), "argument names are strings")
                if name in args.values:
                    raise RequestArgsError(".".join(path), "this argument is given twice, in two fields of the request")
                # OpenAI's field is meant for the builtin; a processor that accepts any argument would not read it.
                takers = self._seeing if source else self._bias_takers
                if not any(processor.takes(name) for processor in takers):
                    raise RequestArgsError(".".join(path), self._unknown(name))
                require_sendable(value, ".".join(path))
                args.values[name], args.paths[name] = value, path
        return args

    def hidden(self, args: FlatArgs) -> dict[str, tuple[str, ...]]:
        """Returns the names of arguments that a processor does not see, by the processor's name."""
        if not args.values:
            return {}
        # Flat arguments are not meant for these, and would only reach their constructors.
        hidden = {
            processor.name: tuple(args.values)
            for processor in self._declared
            if processor.dialect.by_name_only and processor.mandatory
        }
        if args.paths.get(BIAS) == (BIAS,):
            # Processors in shadow see it too: they change nothing, so the bias is not added twice.
            in_chain = [each for each in self._bias_takers if each.name not in self._shadow]
            others = [each for each in self._seeing if each.takes(BIAS) and each.name not in self._shadow]
            hidden |= {each.name: (BIAS,) for each in others if each is not next(iter(in_chain), None)}
        return hidden

    def settled(self, args: FlatArgs, entering: Entering) -> dict[str, Any]:
        """Returns the arguments as the `Params` of their processors read them; raises RequestArgsError."""
        settled = dict(args.values)
        for processor in self._seeing:
            own = {name: value for name, value in args.values.items() if name in processor.argument_names}
            if own and processor.params_model is not None:
                # An error about a missing argument or several arguments gets the path of the field of the others.
                source = args.paths[next(iter(own))][:-1]
                entering(processor, ".".join(args.paths[next(iter(own))]))
                settled |= settled_args(processor.params_model, own, self._context, source, args.paths)
        return settled

    def _unknown(self, argument: str) -> str:
        if not self._declared:
            return "no logits processors are declared; start the server with --logits-processors"
        names = ", ".join(processor.name for processor in self._declared)
        known = sorted({name for processor in self._seeing for name in processor.argument_names})
        reason = (
            f"no declared logits processor ({names}) takes this argument{did_you_mean(argument, known)}; "
            f"known arguments: {', '.join(known) or 'none'}"
        )
        opaque = [processor.name for processor in self._seeing if processor.params_model is None]
        if not opaque:
            return reason
        return f"{reason}, and those that the code of {', '.join(opaque)} mentions (accepts_any_args = True takes any)"


def _knows(processor: DeclaredProcessor, argument: str) -> bool:
    """Returns True if its `Params` or its code names the argument."""
    return argument in processor.argument_names or argument in processor.read_names
