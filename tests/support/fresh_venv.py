"""A fresh virtual environment in which fastdeploy-lp is installed, made in seconds and without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from support.server import REPOSITORY

SECONDS = 240.0
MODULES = {"pip": "pip", "pytest": "pytest"}
COMMAND = "from fastdeploy_lp.entrypoints.cli import main; main()"
# Each package in a copy of one process that has imported setuptools, which takes a second and remembers its folder.
BUILD = """
import os
import sys

from setuptools import build_meta

wheels, *folders = sys.argv[1:]
for folder in folders:
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        build_meta.build_wheel(wheels)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"{folder} cannot be built")
"""


class FreshVenv:
    """Shares what the running environment has installed; of fastdeploy-lp it has the checkout, and metadata of its own.

    `pip`, `pytest` and `fastdeploy-lp` are commands of it.
    """

    def __init__(self, directory: Path) -> None:
        venv.create(directory, with_pip=False)
        self.python = str(directory / "bin" / "python")
        self._bin = directory / "bin"
        site = Path(sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)}))
        shared = sysconfig.get_path("purelib")
        (site / "shared.pth").write_text(f"{REPOSITORY}\n{shared}\n")
        # Entry points of this very checkout, whatever the shared environment has been told of it.
        subprocess.run(
            [sys.executable, "setup.py", "--quiet", "egg_info", "--egg-base", str(site)],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
        )
        for name, module in MODULES.items():
            self._script(name, f'exec "{self.python}" -m {module} "$@"')
        self._script("fastdeploy-lp", f'exec "{self.python}" -c \'{COMMAND}\' "$@"')

    def environment(self, *plugins: str) -> dict[str, str]:
        """Its commands first, a pip that needs no network, and of the installed processors those named."""
        paths = os.pathsep.join([str(self._bin), os.environ["PATH"]])
        pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1"}
        # Other packages' plugins would take longer to load than most of the tests take.
        addopts = {"PYTEST_ADDOPTS": "-p no:schemathesis -p no:hypothesispytest -p no:anyio"}
        return {
            **os.environ,
            **pip,
            **addopts,
            "PATH": paths,
            "PYTHONPATH": "",
            "FASTDEPLOY_LP_PLUGINS": ",".join(plugins),
        }

    def run(self, *command: str, cwd: Path, plugins: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """What a command of it did."""
        return subprocess.run(
            command, capture_output=True, text=True, cwd=cwd, env=self.environment(*plugins), timeout=SECONDS
        )

    def install(self, packages: Path) -> None:
        """Installs the packages of a folder's folders by pip, from wheels that setuptools builds beside them."""
        wheels = packages / "wheels"
        folders = sorted(str(path.parent) for path in packages.glob("*/pyproject.toml"))
        built = self.run(self.python, "-c", BUILD, str(wheels), *folders, cwd=packages)
        if built.returncode != 0:
            raise RuntimeError(built.stdout + built.stderr)
        found = sorted(map(str, wheels.glob("*.whl")))
        if len(found) != len(folders):
            raise RuntimeError(f"{found} are not the wheels of {folders}")
        done = self.run("pip", "install", "--no-compile", *found, cwd=packages)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        shutil.rmtree(wheels)

    def _script(self, name: str, line: str) -> None:
        path = self._bin / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
