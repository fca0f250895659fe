"""The naive server's twin on FastAPI, one request at a time: the model is called in the event loop.

`python fastapi_server.py --model digits --port 8000`
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
from work import load, settings

given = settings()
model = load(given.model, given.runtime)
app = FastAPI()


@app.post("/predict")
async def predict(request: Request) -> Any:
    """Read, compute, answer; the next request waits."""
    return model([await request.body()])[0]


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning")
