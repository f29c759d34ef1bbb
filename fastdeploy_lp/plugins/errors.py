"""What can be wrong with a plugin."""

from __future__ import annotations

from fastdeploy_lp.plugins.plugin import Plugin, PluginState


class IncompatibleVersionError(RuntimeError):
    """This release of fastdeploy_lp is not one that the code asks for."""


class PluginError(ValueError):
    """A plugin that cannot be used; the message names it, its package and the reason in one line."""

    def __init__(self, plugin: Plugin, reason: str, state: PluginState = PluginState.FAILED) -> None:
        super().__init__(f"{plugin}: {reason}")
        self.plugin = plugin
        self.reason = reason
        self.state = state


class UnknownPluginError(ValueError):
    """A name that no plugin of the group has; the message lists those that there are."""
