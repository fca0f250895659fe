"""FastAPI on uvicorn with uvloop and httptools: worker processes, one request at a time in each thread of its pool."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from work import QUICK, encode, load_for, settings

given = settings()
app = FastAPI()
if __name__ == "serve_fastapi":  # uvicorn's workers import this file twice, once as their main module
    predict = load_for(given)


def answer(body: bytes) -> bytes:
    """One request, computed alone."""
    return encode(predict([body])[0])


@app.post("/predict")
async def serve(request: Request) -> Response:
    """What takes longer than a thread's hop goes to the thread pool, so that the event loop stays free."""
    body = await request.body()
    return Response(answer(body) if given.model in QUICK else await run_in_threadpool(answer, body), media_type="application/json")


if __name__ == "__main__":
    own = {"loop": "uvloop", "http": "httptools", "access_log": False, "log_level": "warning"}
    uvicorn.run("serve_fastapi:app", host="127.0.0.1", port=given.port, workers=given.processes, **own)
