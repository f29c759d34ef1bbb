"""The `fastdeploy-lp` command: one file a subcommand."""

from fastdeploy_lp.entrypoints.cli.command import main

__all__ = ["main"]
