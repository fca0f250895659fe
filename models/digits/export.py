"""Trains a small MLP on scikit-learn's handwritten digits and exports it: `python export.py FOLDER` writes model.pt2."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

WANTED_ACCURACY = 0.97
EPOCHS = 60


def build() -> nn.Module:
    """(B, 64) grey levels 0..16 -> (B, 10) logits."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def train(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """Adam on shuffled batches of 64; seeded, so that every machine trains the same model but for rounding."""
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-4)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
    return model.eval()


def main(out: Path) -> None:
    """Trains, holds the accuracy on a held-out fifth, exports with a dynamic batch dimension."""
    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        torch.tensor(digits.data, dtype=torch.float32),
        torch.tensor(digits.target),
        test_size=0.2,
        random_state=0,
        stratify=digits.target,
    )
    model = train(x_train, y_train)
    with torch.inference_mode():
        accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
    print(f"digits: accuracy {accuracy:.4f} on {len(x_test)} held-out pictures")
    if accuracy < WANTED_ACCURACY:
        raise SystemExit(f"accuracy {accuracy:.4f} is below {WANTED_ACCURACY}: not exported")
    program = torch.export.export(model, (x_test[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, out / "model.pt2")
    write_labelled(x_test, y_test, out / "labelled")


def write_labelled(x: torch.Tensor, y: torch.Tensor, folder: Path) -> None:
    """The held-out fifth as requests, a folder a digit: `batchline race` tells by them what a precision costs."""
    for number, (pixels, label) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        path = folder / str(label) / f"{number:03}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([int(pixel) for pixel in pixels]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
