"""The `fastdeploy-lp` command, with one file per subcommand."""

from fastdeploy_lp.entrypoints.cli.command import main

__all__ = ["main"]
