from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.certificates import Authority
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


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates of a test run."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test writes its agent.yaml."""
    return tmp_path
