"""GET /v1/models."""

from __future__ import annotations

from fastapi import APIRouter

from fastdeploy_lp.engine.engine import Engine
from fastdeploy_lp.entrypoints.openai.errors import NotFoundError
from fastdeploy_lp.entrypoints.openai.protocol.model import ModelCard, ModelList
from fastdeploy_lp.entrypoints.openai.routes.failures import failures


def model_routes(engine: Engine) -> APIRouter:
    """Returns the routes of the served model, in a list and by id."""
    router = APIRouter(responses=failures(503))
    config = engine.fd_config.model_config

    # Created once: `created` is the start of the model, not the time of the request.
    card = ModelCard(id=config.served_model_name, max_model_len=config.max_model_len)

    @router.get("/v1/models")
    async def models() -> ModelList:
        """The served model."""
        return ModelList(data=[card])

    # Ids may contain slashes.
    @router.get("/v1/models/{model_id:path}", responses=failures(404))
    async def model(model_id: str) -> ModelCard:
        """The served model, by id."""
        if model_id != config.served_model_name:
            raise NotFoundError(
                f"the model {model_id!r} does not exist; this server has {config.served_model_name!r}",
                "model",
                "model_not_found",
            )
        return card

    return router
