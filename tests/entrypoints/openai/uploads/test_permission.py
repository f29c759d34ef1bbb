"""Permission to upload: by option, by key, and by the rule of the policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastdeploy_lp.entrypoints.openai.errors import ForbiddenError
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestRecord
from fastdeploy_lp.entrypoints.openai.policy.rule import Rule
from fastdeploy_lp.entrypoints.openai.routes.upload_permission import UploadPermission
from fastdeploy_lp.entrypoints.openai.uploads.store import UploadStore

STORE = UploadStore(None)
# Of a server without keys, of a client's key, of an operator's key, without a key where others have one.
OPEN = RequestRecord("r", "POST", "/v1/logits_processors")
CLIENT = replace(OPEN, key="a" * 64, operator=False)
OPERATOR = replace(OPEN, key="b" * 64)
STRANGER = replace(OPEN, operator=False)
ALLOWED = replace(CLIENT, rule=Rule(name="trusted", uploads=True))


@pytest.mark.parametrize(
    ("record", "restricted", "allowed"),
    [
        (OPEN, False, True),
        (CLIENT, False, True),
        (OPERATOR, False, True),
        (STRANGER, False, False),
        (OPEN, True, False),
        (CLIENT, True, False),
        (ALLOWED, True, True),
        (OPERATOR, True, True),
        (STRANGER, True, False),
    ],
)
def test_who_may_upload(record: RequestRecord, restricted: bool, allowed: bool) -> None:
    permission = UploadPermission(STORE, restricted)
    assert permission.allows(record) == allowed
    if allowed:
        assert permission.require(record) is STORE
    else:
        with pytest.raises(ForbiddenError):
            permission.require(record)


def test_a_key_that_may_not_upload_any_more_still_deletes_its_uploads() -> None:
    assert UploadPermission(STORE, restricted=True).store_of(CLIENT) is STORE


def test_without_the_option_nobody_has_uploads() -> None:
    permission = UploadPermission(None, restricted=False)
    assert not permission.allows(OPERATOR)
    with pytest.raises(ForbiddenError, match="--allow-uploads"):
        permission.store_of(OPERATOR)
