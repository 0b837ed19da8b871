"""What the tests of releases share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.releases_for_tests import Releases
from tests.integration.agent.versions import Publisher


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def publisher(folder: Path) -> Publisher:
    return Publisher(folder)


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "repository")
