"""Files of uploaded modules, each for the owner that it belongs to."""

from __future__ import annotations

import logging
import os
import re
import stat
import subprocess
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fastdeploy_lp.engine.client.locked_folder import LockedFolder
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.registry import MAX_BROUGHT, load_brought
from fastdeploy_lp.logits_processor.wasm.module import SUFFIX

logger = logging.getLogger(__name__)

PREFIX = "fastdeploy-lp-uploads-"
"""Of temporary folders."""

REMOVER = ("/bin/sh", "-c", 'read -r _; exec rm -rf -- "$0"')

LABEL = r"[a-z][a-z0-9_]{0,31}"
_NAME = re.compile(rf"{LABEL}_[0-9a-f]{{16}}")
_OWNER = re.compile(r"[0-9a-f]{64}")
NO_KEY = "0" * 64
"""Owner of uploads to a server without keys."""

MAX_UPLOADS_EACH = 32
MAX_UPLOAD_BYTES = 1 << 20


class StoreFullError(Exception):
    """An owner, or all of them, have as many uploads as they may."""


@dataclass(frozen=True)
class Upload:
    """A stored module. created: seconds since the epoch."""

    name: str
    sha256: str
    num_bytes: int
    created: int
    spec: str

    @property
    def declared(self) -> DeclaredProcessor:
        """The processor; it is loaded already, unless more than MAX_BROUGHT others were since."""
        return load_brought(self.spec)


class UploadStore:
    """Uploads by owner, a digest of an API key, and by name, which begins with a label and ends with a digest.

    The digest is of owner, label and content: no owner can find the name of another's upload, and a file that was
    changed is not used. directory: keeps the files; None for a temporary one. Raises ValueError naming the option for a
    directory that others can write to. Methods that read or write files belong in threads.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = _temporary(self) if directory is None else _private(Path(directory))
        self._uploads: dict[str, dict[str, Upload]] = {}
        for path in sorted(self._directory.glob(f"*/*{SUFFIX}")):
            self._read(path)

    def of(self, owner: str) -> Mapping[str, Upload]:
        """Returns an owner's uploads by name, the oldest first."""
        return self._uploads.get(owner or NO_KEY, {})

    def find(self, name: str) -> Upload | None:
        """Returns the upload of this name of any owner; for operators."""
        return next((own[name] for own in self._uploads.values() if name in own), None)

    def specs_of(self, owner: str) -> dict[str, str]:
        """Returns the SPECs of an owner's uploads by name."""
        return {name: each.spec for name, each in self.of(owner).items()}

    def add(self, owner: str, label: str, content: bytes) -> Upload:
        """Stores a valid module and returns it; the same one again changes nothing. Raises StoreFullError."""
        owner = owner or NO_KEY
        own = self._uploads.setdefault(owner, {})
        name = _named(owner, label, content)
        if name not in own:
            if len(own) >= MAX_UPLOADS_EACH:
                raise StoreFullError(f"there are {len(own)} uploads of this key already; delete one first")
            if sum(map(len, self._uploads.values())) >= MAX_BROUGHT:
                raise StoreFullError(f"this server keeps {MAX_BROUGHT} uploads of all keys, and has them")
            folder = self._directory / owner
            folder.mkdir(mode=0o700, exist_ok=True)
            path, partial = folder / f"{name}{SUFFIX}", folder / f"{name}.partial"
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            partial.rename(path)
            self._read(path)
        return own[name]

    def remove(self, owner: str, name: str) -> None:
        """Deletes an upload; raises KeyError for a name that the owner does not have."""
        owner = owner or NO_KEY
        del self._uploads.get(owner, {})[name]
        (self._directory / owner / f"{name}{SUFFIX}").unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        owner, name = path.parent.name, path.stem
        content = path.read_bytes()
        label = name[:-17]
        if not _OWNER.fullmatch(owner) or not _NAME.fullmatch(name) or _named(owner, label, content) != name:
            logger.warning("uploads: %s is left out: it is no upload, or was changed", path)
            return
        digest, created = sha256(content).hexdigest(), int(path.stat().st_mtime)
        upload = Upload(name, digest, len(content), created, f"{name}={path}")
        # So that no request waits for it.
        _ = upload.declared.params_model
        self._uploads.setdefault(owner, {})[name] = upload


def _named(owner: str, label: str, content: bytes) -> str:
    return f"{label}_{sha256(f'{owner} {label} '.encode() + content).hexdigest()[:16]}"


def _temporary(store: UploadStore) -> Path:
    folder = LockedFolder(PREFIX)
    weakref.finalize(store, folder.remove)
    # Without a shell, the next server removes the folder of a killed one.
    with suppress(FileNotFoundError):
        # The input of this process ends with ours, also if that is killed.
        remover = subprocess.Popen([*REMOVER, str(folder.path)], stdin=subprocess.PIPE, start_new_session=True)
        weakref.finalize(store, remover.communicate)
    return folder.path


def _private(directory: Path) -> Path:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise ValueError(f"upload_store: {directory} cannot be used: {error.strerror}") from None
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
        raise ValueError(f"upload_store: {directory} must belong to this user, and no other may write to it")
    return directory.absolute()
