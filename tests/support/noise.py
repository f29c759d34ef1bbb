"""Contents that are nearly right: changes at random places, the same ones in every run.

FASTDEPLOY_LP_NOISE_EXAMPLES says how many a test tries.
"""

from __future__ import annotations

import os
from typing import Any, TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# derandomize: the same examples in every run, so that a failure here is one everywhere.
EXAMPLES = int(os.environ.get("FASTDEPLOY_LP_NOISE_EXAMPLES", "80"))
FIXED = settings(database=None, derandomize=True, suppress_health_check=list(HealthCheck), max_examples=EXAMPLES)
Changes: TypeAlias = list[tuple[str, float, bytes]]
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def changes() -> st.SearchStrategy[Changes]:
    """Up to four changes, each at a share of the content's length."""
    kinds = st.sampled_from(["replace", "insert", "cut"])
    numbers = [b"\xff" * 8, bytes(8), (2**62).to_bytes(8, "little")]
    values = st.binary(min_size=1, max_size=12) | st.sampled_from(numbers)
    return st.lists(st.tuples(kinds, st.floats(0, 1), values), min_size=1, max_size=4)


def changed(content: bytes, made: Changes, within: int) -> bytes:
    """`content` with changes in its first `within` bytes, where its structure stands."""
    for kind, share, value in made:
        at = int(share * min(within, len(content)))
        if kind == "insert":
            content = content[:at] + value + content[at:]
        elif kind == "cut":
            content = content[:at]
        else:
            content = content[:at] + value + content[at + len(value) :]
    return content
