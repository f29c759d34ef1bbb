"""One object for a module, also when it is imported through a link at the top of a checkout.

`worker` and `entrypoints` there are links to packages of `fastdeploy_lp`. Without a redirection, `import worker.pipe`
executes the file a second time: its classes differ from the classes of `fastdeploy_lp.worker.pipe`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import CodeType, ModuleType


def redirect(link: str, package: str) -> None:
    """Let `link` and everything below it mean `package`; called by the package while it is imported as `link`."""
    sys.meta_path.insert(0, LinkedModules(link, package))
    sys.modules[link] = import_module(package)


class LinkedModules(MetaPathFinder):
    """Finds the package's modules for names below a link."""

    def __init__(self, link: str, package: str) -> None:
        self._prefix = f"{link}."
        self._package = package

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the interface's
        target: ModuleType | None = None,  # noqa: ARG002 - the interface's
    ) -> ModuleSpec | None:
        """The spec of a module below the link, None for every other."""
        if not fullname.startswith(self._prefix):
            return None
        real = find_spec(f"{self._package}.{fullname.removeprefix(self._prefix)}")
        if real is None:
            return None
        is_package = real.submodule_search_locations is not None
        return spec_from_loader(fullname, _Loader(real), origin=real.origin, is_package=is_package)


class _Loader(InspectLoader):
    """Returns the module of the real name."""

    def __init__(self, real: ModuleSpec) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - the interface's
        return import_module(self._real.name)

    def exec_module(self, module: ModuleType) -> None:
        # Executed before, under its real name. The import system has replaced its spec by the link's.
        module.__spec__ = self._real

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002 - the interface's
        """For `python -m`."""
        return self._loader().get_code(self._real.name)

    def get_source(self, fullname: str) -> str | None:  # noqa: ARG002 - the interface's
        return self._loader().get_source(self._real.name)

    def is_package(self, fullname: str) -> bool:  # noqa: ARG002 - the interface's
        return self._real.submodule_search_locations is not None

    def _loader(self) -> InspectLoader:
        if not isinstance(self._real.loader, InspectLoader):
            raise ImportError(f"{self._real.name} has no source")
        return self._real.loader
