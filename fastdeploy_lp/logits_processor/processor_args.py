"""Arguments of one request as a slot holds them, and lists that processors may only read."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

Item = TypeVar("Item")


class ReadOnlyError(TypeError):
    """A processor wrote to a part of `share_inputs`, which all requests share."""

    def __init__(self, place: str) -> None:
        super().__init__(f"{place} is read-only: it belongs to every request; work on a copy")


class ReadOnlyList(list[Item]):
    """A list whose methods for changes raise ReadOnlyError.

    Reads cost the same as reads of a list. The engine changes it by the methods of `list` itself, as in
    `list.append(tokens, token)`, so that every holder sees it grow. Copies and slices are plain lists.
    """

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ReadOnlyError("this list of share_inputs")

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class ProcessorArgs(dict[str, Any]):
    """A dict whose keys are attributes, too; an argument that was not passed is None.

    FastDeploy's documentation reads `args.enable_your_logits_processor` for requests that may not have passed it.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)
