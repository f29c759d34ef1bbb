"""The engine inside a FastAPI application.

MODEL=smollm2-135m uvicorn --app-dir examples fastapi_app:app

curl 'http://127.0.0.1:8000/answer?question=Who+is+Lu+Xun%3F'
curl -N 'http://127.0.0.1:8000/stream?question=Who+is+Lu+Xun%3F'
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from fastdeploy_lp import AsyncLLM, RequestOutputKind, SamplingParams


@asynccontextmanager
async def engine(app: FastAPI) -> AsyncIterator[None]:
    """The worker starts and ends with the application."""
    model = os.environ.get("MODEL", "smollm2-135m")
    async with AsyncLLM(model, logits_processors=["LogitBiasLogitsProcessor"], max_num_seqs=8) as llm:
        app.state.llm = llm
        yield


app = FastAPI(lifespan=engine)


def pieces(llm: AsyncLLM, question: str, max_tokens: int, output_kind: RequestOutputKind):
    """Outputs of a request for which the token ` Paris` of the default model is out of reach."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens, logit_bias={7042: -100.0}, output_kind=output_kind)
    return llm.chat([{"role": "user", "content": question}], params)


@app.get("/answer")
async def answer(question: str, request: Request, max_tokens: int = 32) -> dict[str, str | None]:
    """The whole answer."""
    try:
        outputs = pieces(request.app.state.llm, question, max_tokens, RequestOutputKind.FINAL_ONLY)
        output = [output async for output in outputs][-1]
    except ValueError as error:  # the message names the field at fault
        raise HTTPException(400, str(error)) from None
    return {"text": output.outputs.text, "finish_reason": output.outputs.finish_reason}


@app.get("/stream")
async def stream(question: str, request: Request, max_tokens: int = 32) -> StreamingResponse:
    """The answer as it is generated; a client that goes aborts it."""
    outputs = pieces(request.app.state.llm, question, max_tokens, RequestOutputKind.DELTA)

    async def text() -> AsyncIterator[str]:
        async for output in outputs:
            yield output.outputs.text

    return StreamingResponse(text(), media_type="text/plain")
