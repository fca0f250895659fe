"""The naive server: Flask and model.predict, one request at a time. `python flask_server.py --model digits --port 8000`.

Its time for one request, T_serial, is the baseline against which a batch is drawn. Threads are what PyTorch chooses.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flask import Flask, jsonify, request

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))
from work import load, settings

given = settings()
model = load(given.model, given.runtime)
app = Flask(__name__)


@app.post("/predict")
def predict() -> object:
    """Read, compute, answer; the next request waits."""
    return jsonify(model([request.get_data()])[0])


if __name__ == "__main__":
    app.run(host="127.0.0.1", port=given.port, threaded=False)
