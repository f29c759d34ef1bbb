"""One request's arguments as a slot of `share_inputs` holds them."""

from __future__ import annotations

from typing import Any


class ProcessorArgs(dict[str, Any]):
    """A dict whose keys are attributes, too; an argument that was not passed is None.

    FastDeploy's documentation reads `args.enable_your_logits_processor` for requests that may not have passed it.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)
