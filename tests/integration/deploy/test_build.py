"""The build steps of the Dockerfile, run outside a container, and the service from what they made."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.cloud.test_unprivileged import needs_root, serve_as_nobody
from tests.unit.deploy.manifests import DOCKERFILE, ROOT, stages
from tests.unit.models_for_tests import linear

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PLACES = ("/src", "/build", "/wheels", "/constraints.txt", "/opt/upwell")
"""What the steps of a build name in its image."""


@dataclass(frozen=True)
class Image:
    """A folder that stands for the root of an image."""

    root: Path

    def run(self, stage: str) -> None:
        """Every RUN of a stage, with the defaults of its ARGs."""
        steps = dict(stages())[stage]
        defaults = dict(rest.partition("=")[::2] for word, rest in steps if word == "ARG")
        for word, rest in steps:
            if word == "RUN":
                self._step(rest, defaults)

    def _step(self, command: str, defaults: Mapping[str, str]) -> None:
        place = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, PLACES))})\b")
        moved = place.sub(lambda found: f"{self.root}{found[1]}", command)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-euc", moved], cwd=self.root / "src", env={**os.environ, **defaults, "PATH": path},
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, f"{moved}\n{done.stderr}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / "opt/upwell/bin/python"


@pytest.fixture(scope="module")
def built() -> Iterator[Image]:
    """The wheel, made from the files that the build is given and no others."""
    rules = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as name:  # where everybody may go, unlike pytest's own
        root = Path(name)
        root.chmod(0o755)
        for one in (rule[1:] for rule in rules if rule.startswith("!")):
            target = root / "src" / one
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / one).is_dir():
                shutil.copytree(ROOT / one, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / one, target)
        shutil.copy(ROOT / "constraints.txt", root)
        (root / "opt").mkdir()
        image = Image(root)
        image.run("wheel")
        yield image


@needs_root
def test_the_service_serves_as_somebody_without_rights(built: Image) -> None:
    built.run("service-environment")
    models = built.root / "models"
    (models / "linear" / "1").mkdir(parents=True)
    linear(models).rename(models / "linear" / "1" / "model.onnx")
    for path in (models, *models.rglob("*")):
        path.chmod(0o444 if path.is_file() else 0o555)
    serve_as_nobody(built.python, models)
    loaded = subprocess.run([built.python, "-c", "import upwell.shared.telemetry.otlp"], cwd="/")
    assert loaded.returncode == 0


def test_the_agent_is_installed_without_what_it_does_not_need(built: Image) -> None:
    shutil.rmtree(built.root / "opt/upwell", ignore_errors=True)
    built.run("agent-environment")
    helped = subprocess.run([built.python.with_name("upwell"), "agent", "--help"], capture_output=True, text=True)
    assert (helped.returncode, "agent.yaml" in helped.stdout) == (0, True)
    assert subprocess.run([built.python, "-c", "import onnxruntime, ai_edge_litert"]).returncode == 0
    assert subprocess.run([built.python, "-c", "import grpc_health"], stderr=subprocess.DEVNULL).returncode != 0
