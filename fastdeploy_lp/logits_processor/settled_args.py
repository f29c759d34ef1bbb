"""Arguments as a `Params` model reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from fastdeploy_lp.logits_processor.author_code import contained, described
from fastdeploy_lp.logits_processor.errors import RequestArgsError


def settled_args(
    model: type[BaseModel],
    args: dict[str, Any],
    context: dict[str, Any],
    prefix: tuple[str, ...],
    paths: Mapping[str, tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """Returns the arguments as `model` reads them.

    Raises RequestArgsError with the argument's path in `paths`, or else with `prefix` and its name.
    """
    try:
        checked = model.model_validate(args, context=context)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = [str(part) for part in first["loc"] if part != "[key]"] or [next(iter(args), "")]
        path = (paths or {}).get(location[0], (*prefix, location[0]))
        where = ".".join((*path, *location[1:]))
        raise RequestArgsError(where, first["msg"].removeprefix("Value error, ")) from None
    except BaseException as error:  # pydantic passes on exceptions of an author's validator
        raise RequestArgsError(".".join(prefix), described(contained(error))) from error
    settled: dict[str, Any] = checked.model_dump(by_alias=True, exclude_unset=True)
    # A validated default, such as a phrase, differs from the author's value: the worker gets it as well.
    read = {name for name, field in model.model_fields.items() if field.validate_default}
    return settled | checked.model_dump(by_alias=True, include=read)
