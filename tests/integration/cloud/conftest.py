"""A repository of small models, and one service over it for all tests that leave it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cloud.serving import Service, serving
from tests.unit.models_for_tests import linear, slow
from upwell.shared.oip.grpc.client.client import OipClient


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`linear` (versions 1 and 2), `slow` and `broken`."""
    root = tmp_path_factory.mktemp("repository")
    for name, version in (("linear", 1), ("linear", 2), ("slow", 1), ("broken", 1)):
        folder = root / name / str(version)
        folder.mkdir(parents=True)
        made = slow(folder, size=512, layers=20) if name == "slow" else linear(folder, seed=version)
        made.rename(folder / "model.onnx")
    (root / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    return root


@pytest.fixture(scope="session")
def service(repository: Path) -> Iterator[Service]:
    with serving("--models", repository) as running:
        yield running


@pytest.fixture
def client(service: Service) -> Iterator[OipClient]:
    client = OipClient(service.address, max_message_bytes=256 << 20)
    yield client
    client.close()
