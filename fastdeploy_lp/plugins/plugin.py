"""One plugin: what its package announced, and what that turned out to be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fastdeploy_lp.plugins.group import PluginGroup


@dataclass(frozen=True)
class Plugin:
    """An entry point of an installed distribution.

    name: what `FASTDEPLOY_LP_PLUGINS` and messages call it. value: "module:attribute".
    distribution, version: the installed package. requirements: its `Requires-Dist` lines that name fastdeploy_lp.
    namesake: the distribution of another plugin of this group and name that comes first; None when there is none.
    """

    group: PluginGroup
    name: str
    value: str
    distribution: str
    version: str
    requirements: tuple[str, ...] = ()
    namesake: str | None = None

    def __str__(self) -> str:
        return f"{self.group.kind} {self.name} ({self.distribution} {self.version})"


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin whose module is imported; `found` is the object that its entry point names."""

    plugin: Plugin
    found: Any

    @property
    def name(self) -> str:
        """The entry point's name."""
        return self.plugin.name


class PluginState(str, Enum):
    """What became of an installed plugin in this process."""

    LOADED = "loaded"
    FILTERED = "filtered"
    INCOMPATIBLE = "incompatible"
    FAILED = "failed"


@dataclass(frozen=True)
class PluginReport:
    """A plugin's state, and why in one line where it is not loaded."""

    plugin: Plugin
    state: PluginState
    reason: str = ""


_running: ContextVar[Plugin | None] = ContextVar("running_plugin", default=None)


def running_plugin() -> Plugin | None:
    """The plugin whose function is being called right now, so that what it registers can be told to be its."""
    return _running.get()


@contextmanager
def running(plugin: Plugin) -> Iterator[None]:
    """Inside, `running_plugin` gives `plugin`."""
    token = _running.set(plugin)
    try:
        yield
    finally:
        _running.reset(token)
