"""The entry-point groups in which packages announce plugins."""

from __future__ import annotations

from enum import Enum


class PluginGroup(str, Enum):
    """One kind of plugin; the value is its entry-point group."""

    GENERAL = "fastdeploy_lp.general_plugins"
    PLATFORM = "fastdeploy_lp.platform_plugins"
    IO_PROCESSOR = "fastdeploy_lp.io_processor_plugins"
    STAT_LOGGER = "fastdeploy_lp.stat_logger_plugins"
    LOGITS_PROCESSOR = "fastdeploy_lp.logits_processors"
    # vLLM's own group, read only with --vllm-compat.
    VLLM_LOGITS_PROCESSOR = "vllm.logits_processors"

    @property
    def kind(self) -> str:
        """Name of a plugin of this group in messages."""
        return _KINDS[self]

    @property
    def skips_failures(self) -> bool:
        """True if a plugin that cannot be used is skipped; in the other groups it aborts the start."""
        return self is PluginGroup.GENERAL


_KINDS = {
    PluginGroup.GENERAL: "general plugin",
    PluginGroup.PLATFORM: "platform plugin",
    PluginGroup.IO_PROCESSOR: "IO-processor plugin",
    PluginGroup.STAT_LOGGER: "stat-logger plugin",
    PluginGroup.LOGITS_PROCESSOR: "logits-processor plugin",
    PluginGroup.VLLM_LOGITS_PROCESSOR: "vLLM logits-processor plugin",
}
