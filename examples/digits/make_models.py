"""Train the networks of `upwell demo` on scikit-learn's handwritten digits and write them where the demo looks.

Writes the int8 models of the device, the float32 models of the cloud and the held-out digits to the demo's assets,
prints the size of each file and its accuracy on the held-out digits, and fails if a file disagrees with its network.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from ai_edge_litert.interpreter import Interpreter
from exporting import write_onnx, write_onnx_int8, write_safetensors, write_tflite_int8
from pictures import Split, lay_out, nchw, nhwc, resized, split_digits
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.torch import load_file
from torch import nn
from training import SEED, EdgeNet, EdgePageNet, train

from upwell.cloud.engines.torch.demo import LargeNet, LargePageNet
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import ASSETS, heldout, pages

ZOOM = 4
"""The cloud's network reads pictures four times as wide and high: 32 pixels a digit."""
PAGES = 20
INT8_DRIFT, FLOAT_DRIFT = 0.01, 0.0
"""How far the accuracy of a file may differ from its network's: rounding to int8 changes a few digits."""
SHARES = (0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Task:
    """The two networks of a task, and the pictures, uint8 [n, height, width], for training and testing.

    `labels` is int64 [n] or, for pages, [n, 60].
    """

    name: str
    edge: nn.Module
    large: nn.Module
    calibration: Array
    pictures: Array
    labels: Array


@dataclass(frozen=True)
class Written:
    """A file, its logits for the held-out pictures, its network's accuracy and its own."""

    path: Path
    logits: Array
    torch_accuracy: float
    accuracy: float
    drift: float


def main() -> int:
    """Make everything; returns 1 if a file reads the digits worse than its network does."""
    torch.set_num_threads(1)  # fixed order of sums: same versions, same weights
    split = split_digits(SEED)
    ASSETS.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(ASSETS / "heldout.npz", images=split.heldout_images, labels=split.heldout_labels)
    console = Console(file=sys.stdout)  # the original stream: exporting redirects `sys.stdout` for a while
    tasks = _tasks(split, console)
    files: list[Written] = []
    for task in track(tasks, description="exporting", console=console):
        edge, large = _write_edge(task), _write_large(task)
        files += edge + large
        for small in edge:
            _print_cascade(console, small, large[0], task.labels)
    _print_files(console, files)
    astray = [one.path.name for one in files if abs(one.accuracy - one.torch_accuracy) > one.drift]
    if astray:
        console.print(f"these files do not read digits as their networks do: {', '.join(astray)}")
    return 1 if astray else 0


def _tasks(split: Split, console: Console) -> list[Task]:
    seen = split.train_images, split.train_labels
    edge = train(EdgeNet, *seen, to_tensor=nchw, zoom=1, epochs=60, console=console)
    large = train(LargeNet, *seen, to_tensor=nhwc, zoom=ZOOM, epochs=25, console=console)
    edge_page, large_page = EdgePageNet(), LargePageNet()
    edge_page.load_state_dict(edge.state_dict())
    large_page.load_state_dict(large.state_dict())
    digits, test_pages = heldout(), pages(PAGES, SEED)
    pictures = np.stack([np.asarray(Image.open(io.BytesIO(page.png))) for page in test_pages])
    labels = np.stack([page.labels for page in test_pages])
    train_pages = lay_out(split.train_images, np.random.default_rng(SEED))
    return [
        Task("digits", edge, large, split.train_images[:300], digits.images, digits.labels),
        Task("pages", edge_page.eval(), large_page.eval(), train_pages, pictures, labels),
    ]


def _write_edge(task: Task) -> list[Written]:
    folder = ASSETS / "edge" / task.name
    folder.mkdir(parents=True, exist_ok=True)
    calibration, batch = nchw(task.calibration), nchw(task.pictures)
    expected = _accuracy(_torch_logits(task.edge, batch), task.labels)
    write_onnx_int8(task.edge, calibration, folder / "model.onnx")
    write_tflite_int8(task.edge, calibration, folder / "model.tflite")
    readers: dict[str, Callable[[Path, Array], Array]] = {"model.onnx": _onnx_logits, "model.tflite": _tflite_logits}
    return [_check(folder / name, read, batch, task.labels, expected, INT8_DRIFT) for name, read in readers.items()]


def _write_large(task: Task) -> list[Written]:
    folder = ASSETS / "cloud" / f"{task.name}-large" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    batch = nhwc(resized(task.pictures, ZOOM))
    expected = _accuracy(_torch_logits(task.large, batch), task.labels)
    write_onnx(task.large, batch, folder / "model.onnx")
    write_safetensors(task.large, folder / "model.safetensors")

    def from_weights(path: Path, rows: Array) -> Array:
        net = type(task.large)()
        net.load_state_dict(load_file(path))
        return _torch_logits(net.eval(), rows)

    return [
        _check(folder / "model.onnx", _onnx_logits, batch, task.labels, expected, FLOAT_DRIFT),
        _check(folder / "model.safetensors", from_weights, batch, task.labels, expected, FLOAT_DRIFT),
    ]


def _check(
    path: Path, read: Callable[[Path, Array], Array], batch: Array, labels: Array, expected: float, drift: float
) -> Written:
    path.chmod(0o644)  # the writers disagree about the mode
    logits = read(path, batch)
    return Written(path, logits, expected, _accuracy(logits, labels), drift)


def _torch_logits(net: nn.Module, batch: Array) -> Array:
    with torch.inference_mode():
        logits: Array = net(torch.from_numpy(batch)).numpy()
    return logits


def _onnx_logits(path: Path, batch: Array) -> Array:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    logits: Array = session.run(["logits"], {"x": batch})[0]
    return logits


def _tflite_logits(path: Path, batch: Array) -> Array:
    runner = Interpreter(str(path)).get_signature_runner()
    return np.concatenate([runner(x=row[None])["logits"] for row in batch])


def _accuracy(logits: Array, labels: Array) -> float:
    return float((logits.argmax(-1) == labels).mean())


def _print_cascade(console: Console, edge: Written, large: Written, labels: Array) -> None:
    """Print the accuracy if the large network reads the digits of least margin."""
    scores = torch.from_numpy(edge.logits).softmax(-1).numpy().reshape(-1, 10)
    top = np.sort(scores, axis=-1)
    margin = top[:, -1] - top[:, -2]
    order = margin.argsort()
    table = Table(title=f"{edge.path.relative_to(ASSETS)} + {large.path.parts[-3]}")
    for heading in ("share sent up", "margin below", "accuracy"):
        table.add_column(heading, justify="right")
    answers, better = scores.argmax(-1), large.logits.reshape(-1, 10).argmax(-1)
    for share in (0.0, *SHARES, 1.0):
        count = round(share * len(order))
        mixed = answers.copy()
        mixed[order[:count]] = better[order[:count]]
        below = margin[order[count]] if count < len(order) else 1.0
        table.add_row(f"{share:.0%}", f"{below:.3f}", f"{(mixed == labels.ravel()).mean():.4f}")
    console.print(table)


def _print_files(console: Console, files: list[Written]) -> None:
    table = Table(title="accuracy of each network and of its file")
    table.add_column("file", no_wrap=True)
    for heading in ("bytes", "network", "file"):
        table.add_column(heading, justify="right")
    for one in files:
        name, size_bytes = str(one.path.relative_to(ASSETS)), one.path.stat().st_size
        table.add_row(name, f"{size_bytes:,}", f"{one.torch_accuracy:.4f}", f"{one.accuracy:.4f}")
    console.print(table)
    console.print(f"written below {ASSETS}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
