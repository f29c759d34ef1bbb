"""GET /v1/logits_processors, and the reset of a processor."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request

from fastdeploy_lp.engine.client.engine import Engine
from fastdeploy_lp.engine.client.processor_states import ProcessorInfo
from fastdeploy_lp.entrypoints.openai.errors import NotFoundError
from fastdeploy_lp.entrypoints.openai.middleware.request_record import record_of, require_operator
from fastdeploy_lp.entrypoints.openai.openapi import failures
from fastdeploy_lp.entrypoints.openai.protocol.processor import (
    ProcessorCard,
    ProcessorCounters,
    ProcessorList,
    ShadowCounters,
    UploadCard,
)
from fastdeploy_lp.entrypoints.openai.routes.upload_permission import UploadPermission
from fastdeploy_lp.entrypoints.openai.uploads.store import Upload
from fastdeploy_lp.logits_processor import ProcessorStats


def processor_routes(engine: Engine, permission: UploadPermission) -> APIRouter:
    """Returns the routes that list the processors and reset a quarantined one."""
    router = APIRouter(responses=failures(503))
    uploads = permission.store
    in_shadow = engine.fd_config.structured_outputs_config.shadow

    def card(info: ProcessorInfo) -> ProcessorCard:
        return _card(info, always_in_shadow=info.name in in_shadow)

    def declared(request: Request) -> list[ProcessorCard]:
        record = record_of(request)
        secret = () if record.sees_secrets else record.rule.secret
        return [card(info) for info in engine.processors.describe() if info.name not in secret]

    def uploaded(request: Request) -> list[ProcessorCard]:
        own = {} if uploads is None else uploads.of(record_of(request).key)
        return [upload_card(each, engine.processors.stats_of(name)) for name, each in own.items()]

    @router.get("/v1/logits_processors")
    async def logits_processors(request: Request) -> ProcessorList:
        """The declared logits processors in the order of execution, with their parameters, state and counters."""
        data = [*declared(request), *uploaded(request)]
        return ProcessorList(data=data, takes_uploads=permission.allows(record_of(request)))

    @router.get("/v1/logits_processors/{name}", responses=failures(404))
    async def logits_processor(name: str, request: Request) -> ProcessorCard:
        """One logits processor that the client may use."""
        found = next((each for each in (*declared(request), *uploaded(request)) if each.name == name), None)
        if found is None:
            raise unknown_processor(name)
        return found

    @router.post("/v1/logits_processors/{name}/reset", responses=failures(403, 404))
    async def reset(name: str, request: Request) -> ProcessorCard:
        """Returns a quarantined logits processor to service; for operators."""
        require_operator(request)
        cards = {info.name: info for info in engine.processors.describe()}
        upload = None if uploads is None else uploads.find(name)
        if upload is not None and name in {each.name for each in engine.processors.stats}:
            await engine.reset_processor(name)
            return upload_card(upload, engine.processors.stats_of(name))
        if name not in cards:
            known = ", ".join(cards) or "none"
            reason = f"no logits processor of the name {name!r} is declared; declared are {known}"
            raise NotFoundError(reason, None, "logits_processor_not_found")
        await engine.reset_processor(name)
        return card(next(info for info in engine.processors.describe() if info.name == name))

    return router


def unknown_processor(name: str) -> NotFoundError:
    """Returns the error for a name that does not exist for the client."""
    return NotFoundError(f"there is no logits processor of the name {name!r}", None, "logits_processor_not_found")


def upload_card(upload: Upload, stats: ProcessorStats) -> ProcessorCard:
    """Returns the card of an upload with its counters."""
    declared = upload.declared
    model = declared.params_model
    info = ProcessorInfo(
        name=upload.name,
        dialect=declared.dialect.name,
        source=declared.source,
        spec=upload.name,
        order=-1,
        argmax_invariant=None,
        parameters=None if model is None else model.model_json_schema(),
        description=declared.description,
        stats=stats,
    )
    card = _card(info, always_in_shadow=False)
    card.upload = UploadCard(sha256=upload.sha256, bytes=upload.num_bytes, created=upload.created)
    return card


def _card(info: ProcessorInfo, *, always_in_shadow: bool) -> ProcessorCard:
    stats = info.stats
    counters = {name: getattr(stats, name) for name in ProcessorCounters.model_fields}
    return ProcessorCard(
        name=info.name,
        dialect=info.dialect,
        source=info.source,
        spec=info.spec,
        order=info.order,
        argmax_invariant=info.argmax_invariant,
        parameters=info.parameters,
        output=info.output,
        description=info.description,
        state=stats.state,
        last_error=stats.last_error,
        counters=ProcessorCounters(**counters),
        shadow=ShadowCounters(**msgspec.structs.asdict(stats.shadow)),
        always_in_shadow=always_in_shadow,
        mandatory=info.mandatory,
        stage=info.stage,
    )
