"""Flask under gunicorn: gthread workers, which keep connections alive as sync workers do not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flask import Flask, Response, request
from work import encode, hand_down, load_for, settings

THREADS = 8  # that wait for requests, in each worker

given = settings()
app = Flask(__name__)
if __name__ == "serve_flask":
    predict = load_for(given)


@app.post("/predict")
def serve() -> Response:
    """One request, computed alone."""
    return Response(encode(predict([request.get_data(cache=False)])[0]), mimetype="application/json")


if __name__ == "__main__":
    gunicorn = str(Path(sys.executable).with_name("gunicorn"))
    command = [gunicorn, "--chdir", str(Path(__file__).parent), "--bind", f"127.0.0.1:{given.port}", "--workers", str(given.processes)]
    command += ["--worker-class", "gthread", "--threads", str(THREADS), "--keep-alive", "75", "--timeout", "120", "--no-control-socket"]
    os.execve(gunicorn, [*command, "serve_flask:app"], hand_down(given))
