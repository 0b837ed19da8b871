"""An encoded picture in, an answer out: the agent beside loops that a person writes with Pillow and with OpenCV.

    python -m tests.benchmarks.pictures [--rounds 15] [--opencv FOLDER]

All three run MobileNetV2 (224 x 224, seeded random weights) by ONNX Runtime on one thread, in turn on the same JPEG.
The loops decode, resize, normalize and run as tutorials do. Told are medians, their spread, and the agent beside the
faster loop. FOLDER is where OpenCV was installed; without it that loop is left out.
"""

from __future__ import annotations

import argparse
import importlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from PIL import Image
from rich.table import Table
from sklearn.datasets import load_sample_image

from tests.models.mobilenet import build_mobilenet_v2
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.shared.tensors import Array
from upwell.tools.terminal import stdout_console

SIDE = 224
MEAN, STD = (np.array(three, np.float32) for three in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
SIZES = {"1080p": (1920, 1080), "12 megapixels": (4000, 3000)}
MODEL_YAML = """\
version: 1
signature:
  inputs: {image: {kind: image}}
  outputs: {scores: {kind: logits}}
pre:
  - decode: image
  - resize: {to: [224, 224]}
  - normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
  - layout: NCHW
"""
AGENT_YAML = "version: 1\nagent: {name: bench}\nmodels: {net: {edge: {bundle: net, runtime: onnx, threads: 1}}}\n"

Answer = Callable[[bytes], Array]


def jpeg(size: tuple[int, int]) -> bytes:
    """A photograph of that size with the grain of a camera."""
    photo = Image.fromarray(load_sample_image("china.jpg")).resize(size, Image.Resampling.BICUBIC)
    grain = np.random.default_rng(0).normal(0, 4, (size[1], size[0], 3))
    file = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(photo) + grain, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def session(folder: Path) -> Any:
    """The model as a person opens it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(folder / "net" / "model.onnx"), options)


def with_pillow(folder: Path) -> Answer:
    """The loop of Pillow and ONNX Runtime."""
    model = session(folder)

    def answer(data: bytes) -> Array:
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        tensor = ((pixels.astype(np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1)[None]
        scores: Array = model.run(None, {"picture": np.ascontiguousarray(tensor)})[0]
        return scores

    return answer


def with_opencv(folder: Path, cv2: Any) -> Answer:
    """The loop of OpenCV and ONNX Runtime."""
    model = session(folder)
    cv2.setNumThreads(1)

    def answer(data: bytes) -> Array:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        pixels = cv2.cvtColor(cv2.resize(pixels, (SIDE, SIDE)), cv2.COLOR_BGR2RGB)
        tensor = ((pixels.astype(np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1)[None]
        scores: Array = model.run(None, {"picture": np.ascontiguousarray(tensor)})[0]
        return scores

    return answer


def times_ms(ways: dict[str, Answer], data: bytes, rounds: int) -> dict[str, list[float]]:
    """The durations of each way, in turn."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(data)
    for _ in range(rounds):
        for name, way in ways.items():
            began_s = time.perf_counter()
            way(data)
            found[name].append(1e3 * (time.perf_counter() - began_s))
    return found


def main() -> None:
    """Write the model, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--opencv", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net").mkdir()
        onnx.save(build_mobilenet_v2(), folder / "net" / "model.onnx")
        (folder / "net" / "model.yaml").write_text(MODEL_YAML)
        (folder / "agent.yaml").write_text(AGENT_YAML)
        with embedded_agent(folder / "agent.yaml") as agent:
            ways: dict[str, Answer] = {"agent": lambda data: agent.infer("net", {"image": data}).outputs["scores"]}
            ways["Pillow loop"] = with_pillow(folder)
            if given.opencv is not None:
                sys.path.insert(0, str(given.opencv))
                ways["OpenCV loop"] = with_opencv(folder, importlib.import_module("cv2"))
            table = Table("picture", "way", "median, ms", "p10 to p90, ms", "agent / faster loop")
            for size, pixels in SIZES.items():
                found = times_ms(ways, jpeg(pixels), given.rounds)
                medians = {way: statistics.median(samples) for way, samples in found.items()}
                ratio = medians["agent"] / min(median for way, median in medians.items() if way != "agent")
                for way, samples in found.items():
                    tenths = statistics.quantiles(samples, n=10)
                    spread = f"{tenths[0]:.1f} to {tenths[-1]:.1f}"
                    table.add_row(size, way, f"{medians[way]:.1f}", spread, f"{ratio:.2f}" if way == "agent" else "")
            stdout_console().print(table)


if __name__ == "__main__":
    main()
