"""The real HTTP server on the worker of `canned_worker.py`: `python canned_server.py MODEL PORT`."""

from __future__ import annotations

import asyncio
import signal
import sys

import uvicorn
import uvloop

from fastdeploy_lp.engine.client.engine_client import EngineClient
from fastdeploy_lp.engine.client.supervisor import WorkerHandle
from fastdeploy_lp.entrypoints.declare import declare
from fastdeploy_lp.entrypoints.openai.app import build_app
from fastdeploy_lp.entrypoints.openai.listener.bounds import connection_bounds
from fastdeploy_lp.entrypoints.openai.listener.connections import connection_class
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs


async def serve(model: str, port: int) -> None:
    """Until SIGTERM ends it, which uvicorn raises once more when it is done: the worker has to be stopped first."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    setup = declare(model, ["LogitBiasLogitsProcessor"], {"max_num_seqs": 64})
    engine = EngineClient(setup.fd_config, setup.declared, lambda: WorkerHandle(setup.fd_config, "canned_worker"))
    await engine.start()
    try:
        app = build_app(engine, ServerArgs())
        protocol = connection_class(connection_bounds(None, None))
        await uvicorn.Server(
            uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="off", http=protocol)
        ).serve()
    finally:
        await asyncio.shield(engine.shutdown())


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2])))
