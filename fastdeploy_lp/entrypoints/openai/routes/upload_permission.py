"""Permission of clients to upload logits processors."""

from __future__ import annotations

from dataclasses import dataclass

from fastdeploy_lp.entrypoints.openai.errors import ForbiddenError
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestRecord
from fastdeploy_lp.entrypoints.openai.uploads.store import UploadStore

CODE = "uploads_not_allowed"


@dataclass(frozen=True)
class UploadPermission:
    """store: None without --allow-uploads. restricted: True if a key may upload only with a rule that allows it."""

    store: UploadStore | None
    restricted: bool

    def allows(self, record: RequestRecord) -> bool:
        """Returns True if the client may upload."""
        if self.store is None or not _has_owner(record):
            return False
        return not self.restricted or record.rule.uploads or record.sees_secrets

    def require(self, record: RequestRecord) -> UploadStore:
        """Returns the store for a new upload; raises ForbiddenError for a client that may not upload."""
        store = self.store_of(record)
        if not self.allows(record):
            raise ForbiddenError("this client may not upload logits processors", CODE)
        return store

    def store_of(self, record: RequestRecord) -> UploadStore:
        """Returns the store with the client's uploads; raises ForbiddenError for a client that cannot have any."""
        if self.store is None:
            raise ForbiddenError("this server takes no uploads; it was started without --allow-uploads", CODE)
        if not _has_owner(record):
            raise ForbiddenError("uploads belong to an API key: send one", CODE)
        return self.store


def _has_owner(record: RequestRecord) -> bool:
    return bool(record.key) or record.operator
