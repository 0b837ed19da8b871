from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.clouds import ScriptedCloud, good


@pytest.fixture(scope="session")
def _one_cloud() -> Iterator[ScriptedCloud]:
    with ScriptedCloud() as cloud:
        yield cloud


@pytest.fixture
def cloud(_one_cloud: ScriptedCloud) -> ScriptedCloud:
    """A cloud that behaves, until told otherwise."""
    _one_cloud.behaviour = good
    _one_cloud.requests.clear()
    return _one_cloud


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test writes its agent.yaml."""
    return tmp_path
