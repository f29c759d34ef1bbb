"""At most one processor draws the tokens of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.errors import RequestArgsError
from fastdeploy_lp.logits_processor.selection import Selection


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
