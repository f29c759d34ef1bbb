"""POST and DELETE of /v1/logits_processors: processors that clients bring."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import APIRouter, Request

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.engine.helpers.module_check import ModuleCheck
from fastdeploy_lp.entrypoints.openai.errors import ConflictError
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.processor import ProcessorCard, ProcessorDeleted
from fastdeploy_lp.entrypoints.openai.routes.processors import unknown_processor, upload_card
from fastdeploy_lp.entrypoints.openai.routes.upload_permission import UploadPermission
from fastdeploy_lp.entrypoints.openai.uploads.body import FORM, UploadRequest, read_upload
from fastdeploy_lp.entrypoints.openai.uploads.store import StoreFullError

PATH = "/v1/logits_processors"


def upload_routes(engine: Engine, permission: UploadPermission) -> APIRouter:
    """Returns the routes that store and delete uploads."""
    router = APIRouter(responses=failures(403, 503))
    check = ModuleCheck()
    schema = UploadRequest.model_json_schema()
    form = {"properties": schema["properties"] | {"module": {"type": "string", "format": "binary"}}}
    content = {"application/json": {"schema": schema}, FORM: {"schema": schema | form}}

    @router.post(
        PATH,
        responses=failures(400, 408, 409, 413, 429),
        openapi_extra={"requestBody": {"required": True, "content": content}},
    )
    async def upload(request: Request) -> ProcessorCard:
        """Stores a logits processor, a WebAssembly module, for the requests of the client's key."""
        record = record_of(request)
        store = permission.require(record)
        sent = await request.body()
        label, module = await asyncio.to_thread(read_upload, request.headers.get("content-type", ""), sent)
        refusal = await check.refusal(module, record.client)
        if refusal is not None:
            raise InvalidRequestError("module", refusal)
        try:
            stored = await asyncio.to_thread(partial(store.add, record.key, label, module))
        except StoreFullError as error:
            raise ConflictError(str(error), "too_many_uploads") from None
        return upload_card(stored, engine.processors.stats_of(stored.name))

    @router.delete(f"{PATH}/{{name}}", responses=failures(404))
    async def delete(name: str, request: Request) -> ProcessorDeleted:
        """Deletes an upload of the client's key; requests that run already keep it."""
        record = record_of(request)
        store = permission.store_of(record)
        try:
            await asyncio.to_thread(store.remove, record.key, name)
        except KeyError:
            raise unknown_processor(name) from None
        return ProcessorDeleted(name=name)

    return router
