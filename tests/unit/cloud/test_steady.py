"""Weights are read as they were, whatever is copied over them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from upwell.cloud.engines import trusted_files
from upwell.cloud.engines.trusted_files import steady


@pytest.mark.skipif(sys.platform != "linux", reason="memfd_create")
def test_a_mapping_outlives_what_becomes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    numbers = np.arange(100_000, dtype=np.int64)
    path.write_bytes(numbers.tobytes())
    with steady(path) as copy:
        mapped = np.memmap(copy, np.int64, "r")
        path.write_bytes(b"")
        np.testing.assert_array_equal(mapped, numbers)
    assert not copy.exists()
    np.testing.assert_array_equal(mapped, numbers)


def test_large_files_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted_files, "MAX_COPIED_BYTES", 10)
    path = tmp_path / "weights"
    path.write_bytes(bytes(11))
    with steady(path) as copy:
        assert copy == path


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), steady(tmp_path / "none"):
        pass
