"""Whether splitting pays: the table of results/splitting.md, in the manner of Neurosurgeon, as the commands say.

    python -m tests.benchmarks.neurosurgeon_table [--runs 30] [--folder DIR] [--write results/splitting.md]

Six networks with seeded random weights are profiled on both sides, on this one machine: the cloud as it is, the device
simulated by edge times stretched eightfold. Then `upwell partition plan` says what is best at the uplinks that
Neurosurgeon measured for 3G, LTE and Wi-Fi (Kang et al., ASPLOS 2017). The picture is scikit-learn's photo of a temple,
scaled to what the network takes. Profiles in DIR are used again. For the figures to mean something nothing else should
run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from PIL import Image
from rich.progress import track
from sklearn.datasets import load_sample_image

from tests.models.int8 import quantized
from tests.models.light_zoo import light_zoo_model
from tests.models.mobilenet import build_mobilenet_v2
from tests.models.resnet import build_resnet50

START, END = "<!-- neurosurgeon table: start -->", "<!-- neurosurgeon table: end -->"
STRETCH = 8
RTT = "20ms"
UPLINKS = ("1.1Mbps", "5.85Mbps", "18.88Mbps")
PICTURE, PICTURE_SOURCE = "china.jpg", "scikit-learn's photo of a temple (`china.jpg`)"


def mobilenet_v2_int8() -> onnx.ModelProto:
    """U8U8, as `upwell model quantize` makes it."""
    with tempfile.TemporaryDirectory() as folder:
        return quantized(build_mobilenet_v2(), Path(folder))


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "MobileNetV2": build_mobilenet_v2,
    "MobileNetV2 int8": mobilenet_v2_int8,
    "ResNet-50": build_resnet50,
    "SqueezeNet": lambda: light_zoo_model("squeezenet"),
    "AlexNet": lambda: light_zoo_model("bvlc_alexnet"),
    "Inception v1": lambda: light_zoo_model("inception_v1"),
}


@dataclass(frozen=True)
class Row:
    """One network at one uplink; seconds. `compressed` is the best of the compressed pictures, `cut` the best cut."""

    network: str
    uplink: str
    edge: float
    raw: float
    compressed: float
    cut: float
    cut_name: str
    cut_bytes: float
    is_measured: bool
    best: str

    @property
    def least(self) -> float:
        """Of all ways."""
        return min(self.edge, self.raw, self.compressed, self.cut)


def command(*arguments: str) -> Any:
    """What `upwell` answers as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "upwell.tools.entry", *arguments, "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"upwell {' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def profiles(folder: Path, network: str, runs: int) -> tuple[Path, Path]:
    """Both profiles of a network, measured unless they are there."""
    model = folder / f"{network.lower().replace(' ', '-')}.onnx"
    edge, cloud = (model.with_suffix(f".{tier}.json") for tier in ("edge", "cloud"))
    if not (edge.exists() and cloud.exists()):
        model.write_bytes(NETWORKS[network]().SerializeToString())
        common = ("partition", "profile", str(model), "--threads", "1", "--runs", str(runs))
        command(*common, "--tier", "edge", "--stretch", str(STRETCH), "--out", str(edge))
        command(*common, "--tier", "cloud", "--out", str(cloud))
        model.unlink()
    return edge, cloud


def total_s(option: Mapping[str, Any]) -> float:
    """Of a way of answering."""
    return float(option["total_s"])


def row(network: str, uplink: str, plan: Mapping[str, Any]) -> Row:
    """What the plan says."""
    options: Sequence[Mapping[str, Any]] = plan["advice"]["options"]
    by_kind: dict[str, list[Mapping[str, Any]]] = {"edge": [], "raw": [], "compressed": [], "cut": []}
    for option in options:
        kind = option["kind"]
        if kind == "cloud":
            kind = "raw" if "raw" in option["name"] else "compressed"
        by_kind[kind].append(option)
    edge, raw, compressed, cut = (min(some, key=total_s) for some in by_kind.values())
    return Row(
        network=network,
        uplink=uplink,
        edge=edge["total_s"],
        raw=raw["total_s"],
        compressed=compressed["total_s"],
        cut=cut["total_s"],
        cut_name=cut["name"],
        cut_bytes=cut["bytes"],
        is_measured=cut["measured"],
        best=min((edge, raw, compressed, cut), key=total_s)["name"],
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, and how often which way is the best."""
    text = (
        "|network|uplink|edge only|cloud, raw|cloud, compressed|best cut|best of all|\n|---|---|---|---|---|---|---|\n"
    )
    for one in rows:
        times = "|".join(ms(time_s) for time_s in (one.edge, one.raw, one.compressed))
        note = "" if one.is_measured else ", interpolated"
        cut = f"{ms(one.cut)} (`{one.cut_name}`, {one.cut_bytes / 1e3:.0f} kB{note})"
        best = "**the cut**" if one.best == one.cut_name else one.best
        text += f"|{one.network}|{one.uplink}|{times}|{cut}|{best}|\n"
    return f"{text}\n{summary(rows)}\n"


def summary(rows: Sequence[Row]) -> str:
    """Where splitting wins and where it loses."""
    wins = [one for one in rows if one.best == one.cut_name]
    raw = [one for one in rows if one.cut < min(one.edge, one.raw)]
    loses = [one for one in rows if one.best != one.cut_name]
    gains = [min(one.edge, one.raw, one.compressed) / one.cut for one in wins]
    losses = [one.cut / one.least for one in loses]
    by = f", by up to {max(gains):.2f} ×" if gains else ""
    worst = f" Where it is not, it takes up to {max(losses):.2f} times as long as the best way." if losses else ""
    return (
        f"The best cut is the best of all in {len(wins)} of {len(rows)} cases{by}; if the cloud took raw input alone, "
        f"it would be in {len(raw)}.{worst} The device is simulated: times of this machine multiplied by {STRETCH}. "
        f"The round trip is {RTT}, the picture {PICTURE_SOURCE}."
    )


def ms(seconds: float) -> str:
    """Milliseconds, whole from 100."""
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def write(path: Path, text: str) -> None:
    """Put the table between its marks."""
    page = path.read_text(encoding="utf-8")
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        sys.exit(f"{path}: expected the marks {START} and {END}")
    path.write_text(f"{before}{START}\n\n{text}\n{END}{after}", encoding="utf-8")


def measured(folder: Path, runs: int) -> list[Row]:
    """All rows."""
    picture = folder / f"{PICTURE}.png"
    Image.fromarray(load_sample_image(PICTURE)).save(picture)
    found = []
    for network in track(list(NETWORKS), "measuring", transient=True, disable=not sys.stdout.isatty()):
        edge, cloud = profiles(folder, network, runs)
        for uplink in UPLINKS:
            link = ("--uplink", uplink, "--rtt", RTT, "--picture", str(picture), "--stretch", str(STRETCH))
            plan = command("partition", "plan", "--edge", str(edge), "--cloud", str(cloud), *link)
            found.append(row(network, uplink, plan))
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        text = table(measured(folder, asked.runs))
    print(text)
    if asked.write is not None:
        write(asked.write, text)


if __name__ == "__main__":
    main()
