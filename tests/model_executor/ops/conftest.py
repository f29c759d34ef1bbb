"""Rows shared by several threads, while the tests' process computes in one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastdeploy_lp.model_executor.ops import compiled_ops

THREADS = 3


@pytest.fixture(autouse=True, scope="module")
def _several_threads() -> Iterator[None]:
    """The compiled operators share the rows of a tensor among their threads."""
    library = compiled_ops()
    if library is None:
        yield
        return
    before = library.fdlp_num_threads()
    library.omp_set_num_threads(THREADS)
    assert library.fdlp_num_threads() == THREADS
    yield
    library.omp_set_num_threads(before)
