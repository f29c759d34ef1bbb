"""Reports every read of a tensor's contents, for which the host would have to wait for the device.

Not reported: operators whose result size depends on a tensor's contents (masks as indices, `nonzero`), which wait as
well.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

# Without `__dlpack__`, which shares memory and, on the host, does not wait.
READS = (
    "numpy",
    "item",
    "tolist",
    "cpu",
    "__bool__",
    "__int__",
    "__float__",
    "__complex__",
    "__array__",
    "__index__",
    "__contains__",
    "__format__",
    "__repr__",
    "__str__",
    "__hex__",
    "__oct__",
    "__iter__",
)
PACKAGE = Path(__file__).parents[2]
HARNESS = Path(__file__).with_name("harness.py")
OWN_LINE = 60


@contextmanager
def watch_reads(on_read: Callable[[str], None]) -> Iterator[None]:
    """Calls `on_read` for every read of a Paddle tensor in the block, and of a torch tensor if torch is loaded."""
    from paddle import Tensor

    kinds: list[Any] = [Tensor]
    if "torch" in sys.modules:
        kinds.append(sys.modules["torch"].Tensor)
    changed = [(kind, name, vars(kind).get(name)) for kind in kinds for name in READS if hasattr(kind, name)]
    try:
        for kind, name, _ in changed:
            setattr(kind, name, _watched(name, getattr(kind, name), on_read))
        yield
    finally:
        for kind, name, own in changed:
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)


def _watched(name: str, read: Callable[..., Any], on_read: Callable[[str], None]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not _is_on_host(args[0]):
            on_read(f"Tensor.{name} {_where()}".rstrip())
        return read(*args, **kwargs)

    return watched


def _is_on_host(tensor: Any) -> bool:
    """True for torch int64 tensors, such as Hugging Face's `input_ids`: they are made from lists on the host."""
    return type(tensor).__module__.partition(".")[0] == "torch" and str(tensor.dtype) == "torch.int64"


def _where() -> str:
    """Returns the author's line that read: the innermost one outside this package and the tensor libraries."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path == HARNESS:
            break
        own = PACKAGE in path.parents and "builtin" not in path.parts
        if not own and not {"paddle", "torch", "numpy", "transformers"} & set(path.parts):
            line = linecache.getline(str(path), frame.f_lineno).strip()
            return f"in {path.name}, line {frame.f_lineno}: {line[:OWN_LINE]}"
        frame = frame.f_back
    return ""
