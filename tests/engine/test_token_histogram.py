"""The light histogram against the library's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from fastdeploy_lp.engine.metrics import TokenHistogram

BOUNDS = (0.001, 0.01, 0.1, 1.0)


@given(values=st.lists(st.sampled_from(BOUNDS) | st.floats(0, 10), max_size=30))
def test_it_exports_what_the_librarys_own_would(values: list[float]) -> None:
    registry, light = CollectorRegistry(), TokenHistogram("seconds", "Text", BOUNDS)
    own = Histogram("seconds", "Text", registry=registry, buckets=BOUNDS)
    light.observe(values[:10])
    light.observe(values[10:])
    for value in values:
        own.observe(value)
    light_registry = CollectorRegistry()
    light_registry.register(light)
    expected = [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
    assert generate_latest(light_registry).decode().splitlines() == expected
