"""Metrics of several workers in one registry, distinguished by a label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

LABEL = "engine"


class LabelledRegistries(Collector):
    """The metrics of several registries, one family per name, with the registry's index as the label `engine`."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self._registries = list(registries)

    def collect(self) -> Iterator[Metric]:
        """Yields one family per name."""
        families: dict[str, Metric] = {}
        for index, registry in enumerate(self._registries):
            for found in registry.collect():
                if found.name not in families:
                    families[found.name] = Metric(found.name, found.documentation, found.type, found.unit)
                families[found.name].samples += [
                    sample._replace(labels={LABEL: str(index), **sample.labels}) for sample in found.samples
                ]
        yield from families.values()


class MetricsOfAll:
    """One registry with the metrics of all workers; the server can add its own."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(LabelledRegistries(registries))
