"""The demo's output folder: a working example for the user to change, written without harm to other files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from upwell.shared.errors import ConfigError
from upwell.tools.demo.digit_data import ASSETS, DIGITS, PAGES

AGENT, EDGE_ONLY, CLOUD_ONLY = "agent.yaml", "agent-edge-only.yaml", "agent-cloud-only.yaml"
POLICY = "policy.yaml"
AGENT_LOG, CLOUD_LOG = "agent.log", "cloud.log"
PLOT, REPORT = "plot.png", "report.json"
EASY, HARD, PAGE = "pictures/easy.png", "pictures/hard.png", "pictures/page.png"
CARDS_AGENT, PIPELINES, PIPELINE = "agent-cards.yaml", "pipelines.yaml", "cards"
CARDS_VIDEO, EVENTS, CARDS_PICTURE = "cards.mp4", "events.jsonl", "pictures/cards.jpg"
VIDEO_CLOUD_LOG = "cloud-video.log"
LISTEN = "127.0.0.1:8002"
"""Where `upwell agent` would listen; the demo itself calls the agent in its own process."""

_MANIFEST = ".upwell-demo.json"
_HEADER = "# Each `upwell demo` rewrites this file: copy it before you change it.\n"

_POLICY = f"""{_HEADER}version: 1
defaults:
  deadline: 250ms                         # the answer is due after this time, whatever the cloud does
  objective: accuracy                     # hard or large cases go up if the answer is predicted in time
  hard: {{measure: margin, below: 0.85}}    # the device's first choice leads its second by less than this
  large: {{above: 1KiB}}                    # larger requests go up without a run on the device
  on_cloud_failure: edge                  # then the device's answer stands, marked degraded
"""

_PIPELINES = f"""{_HEADER}version: 1
pipelines:
  {PIPELINE}:
    source: {{video: {CARDS_VIDEO}}}
    steps:
      - infer: {{model: cards}}                                        # a detector: its boxes are the frame's objects
      - track: {{}}
      - zones:
          upper: [[0.7, 0], [1, 0], [1, 0.5], [0.7, 0.5]]
          middle: {{line: [[0.5, 0], [0.5, 1]]}}
      - infer: {{model: digits, on: objects, once: track, margin: 0%, again: {{better: 5%}}}}
    events:
      - {{name: entered, on: enter upper}}
      - {{name: passed, on: cross middle}}
    sinks:
      - jsonl: {EVENTS}
"""


class DemoFolder:
    """A folder in which the demo replaces only files that it wrote itself, by its own list; all others stay
    unchanged.

    Raises `ConfigError` if a file that the demo would write exists and is not its own, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._assets = [
            file.relative_to(ASSETS).as_posix()
            for side in ("edge", "cloud")
            for file in sorted((ASSETS / side).rglob("*"))
            if file.is_file()
        ]
        settings = (AGENT, EDGE_ONLY, CLOUD_ONLY, POLICY, CARDS_AGENT, PIPELINES)
        pictures = (PLOT, EASY, HARD, PAGE, CARDS_PICTURE, CARDS_VIDEO)
        logs = (AGENT_LOG, CLOUD_LOG, VIDEO_CLOUD_LOG, REPORT, EVENTS, f"{EVENTS}.1")
        self._take([*self._assets, *settings, *logs, *pictures])
        self._written: list[str] = []

    @property
    def files(self) -> list[str]:
        """Every file of this run, by path."""
        return [str(self.path / name) for name in self._written]

    def file(self, name: str) -> Path:
        """The path of one of the demo's files."""
        return self.path / name

    def log(self, name: str) -> Path:
        """The path of one of the demo's files that other code writes."""
        self._written.append(name)
        return self.path / name

    def write(self, name: str, data: bytes) -> None:
        """Write one of the demo's files."""
        target = self.path / name
        with ConfigError.on_os_error(target, "cannot be written"):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        self._written.append(name)

    def write_models(self) -> None:
        """Copy the models of both sides."""
        for name in self._assets:
            self.write(name, (ASSETS / name).read_bytes())

    def write_settings(self, runtime: str, endpoint: str) -> None:
        """Write the policy, the agent's configuration, and two more without one of the sides."""
        self.write(POLICY, _POLICY.encode())
        edge = {name: f"edge: {{bundle: edge/{name}, runtime: {runtime}, threads: 1}}" for name in (DIGITS, PAGES)}
        cloud = {name: f"cloud: {{model: {name}-large}}" for name in (DIGITS, PAGES)}
        both = {name: f"{edge[name]}\n    {cloud[name]}" for name in (DIGITS, PAGES)}
        for name, sides, at in ((AGENT, both, endpoint), (EDGE_ONLY, edge, ""), (CLOUD_ONLY, cloud, endpoint)):
            self.write(name, _agent_yaml(sides, at).encode())

    def write_pipeline(self, runtime: str, endpoint: str) -> None:
        """Write the second act's settings: the pipeline, and an agent with its two models. Delete its former events."""
        reader = f"edge: {{bundle: edge/{DIGITS}, runtime: {runtime}, threads: 1}}"
        sides = {
            "cards": "edge: {bundle: edge/cards, runtime: onnx, threads: 1}",
            DIGITS: f"{reader}\n    cloud: {{model: {DIGITS}-large}}",
        }
        self.write(CARDS_AGENT, _agent_yaml(sides, endpoint).encode())
        self.write(PIPELINES, _PIPELINES.encode())
        for name in (EVENTS, f"{EVENTS}.1"):
            self.file(name).unlink(missing_ok=True)

    def _take(self, names: list[str]) -> None:
        """Record the names as the demo's own, after checking that none is someone else's file."""
        manifest = self.path / _MANIFEST
        try:
            own = set(json.loads(manifest.read_bytes())) if manifest.is_file() else set()
        except (OSError, ValueError, TypeError):
            raise ConfigError.at(manifest, "cannot be read; remove it, or choose another folder with --out") from None
        for name in names:
            path = self.path / name
            if name not in own and (path.is_symlink() or path.exists()):
                raise ConfigError.at(path, "exists and was not written by `upwell demo`; choose another --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            manifest.write_text(json.dumps(sorted(own.union(names)), indent=1), encoding="utf-8")
        except OSError as error:
            raise ConfigError.at(self.path, f"cannot be written: {error.strerror}; choose another --out") from None


def _agent_yaml(sides: Mapping[str, str], endpoint: str) -> str:
    cloud = f'cloud: {{endpoint: "{endpoint}"}}\n' if endpoint else ""
    models = "".join(f"  {name}:\n    {side}\n" for name, side in sides.items())
    return (
        f'{_HEADER}version: 1\nagent: {{name: upwell-demo, listen: ["{LISTEN}"]}}\n{cloud}policy: {POLICY}\n'
        f"models:\n{models}"
    )
