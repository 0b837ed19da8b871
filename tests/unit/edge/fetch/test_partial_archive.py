"""Archives that arrive in pieces: what survives a kill, a full disk and another offer."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.bundles_for_tests import bundle_archive
from tests.unit.edge.bundle.bundles import make
from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.updates.sources import partial_archive
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed
from upwell.edge.updates.sources.folder_source import FolderSource
from upwell.edge.updates.sources.partial_archive import Partial
from upwell.shared.files import write_whole

ROOT = Path(__file__).parents[4]

CHILD = """
import os, resource, signal, sys
from pathlib import Path
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed
from upwell.edge.updates.sources.partial_archive import Partial

partial = Partial(Path(sys.argv[1]), AvailableBundle("a"), lambda *_: None)
if sys.argv[2] == "kill":
    for _ in range(40):
        partial.append(bytes(100_000))
    os.kill(os.getpid(), signal.SIGKILL)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, hard))
try:
    for _ in range(20):
        partial.append(bytes(100_000))
except FetchFailed as error:
    print(error)
"""


def nobody(_there: int, _whole: int) -> None:
    pass


OFFER = AvailableBundle("a")


def opened(folder: Path, offer: AvailableBundle = OFFER) -> Partial:
    return Partial(folder, offer, nobody)


def test_a_kill_costs_no_more_than_a_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), "kill"], cwd=ROOT, timeout=60)
    assert done.returncode == -9
    with opened(tmp_path) as again:
        assert 4_000_000 - partial_archive.CHECKPOINT_BYTES <= again.size_bytes <= 4_000_000
        assert again.path.stat().st_size == again.size_bytes


def test_a_disk_that_is_full_keeps_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), "full"], cwd=ROOT, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_said_before_anything_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_archive, "MAX_BYTES", 1 << 60)
    with opened(tmp_path) as it, pytest.raises(FetchFailed, match="are free"):
        it.expect(1 << 59)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own of 40 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("size_bytes", [0, 8 << 20], ids=["no length is stated", "another fills it meanwhile"])
def test_the_disk_is_looked_at_while_it_comes(small_disk: Path, size_bytes: int) -> None:
    """Room for twice the archive and to spare is left at every moment, whoever takes it; nothing stays behind."""
    folder = small_disk / "incoming"
    with Partial(folder, AvailableBundle("a"), nobody) as it:
        it.expect(size_bytes)
        if size_bytes:
            (small_disk / "other").write_bytes(bytes(10 << 20))
        with pytest.raises(FetchFailed, match=r"bytes are free on the disk; expected .* to fetch and unpack it"):
            _fetch(it, folder)
    assert list(folder.iterdir()) == []


def _fetch(it: Partial, folder: Path) -> None:
    for _ in range(25):
        it.append(bytes(1 << 20))
        assert shutil.disk_usage(folder).free >= partial_archive.SPARE_BYTES


def test_a_folder_is_copied_only_as_far_as_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "source" / "digits"
    make(bundle, {f"part-{number}.bin": bytes(4 << 20) for number in range(8)}, version=1)
    source = FolderSource(bundle.parent)
    (offer,) = filter(None, [source.newest()])
    with pytest.raises(FetchFailed, match=r"bytes are free on the disk; expected .* to copy it"):
        source.fetch(offer, small_disk / "incoming", nobody)
    assert list(small_disk.iterdir()) == []


def test_another_offer_begins_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        it.append(b"first")
    with opened(tmp_path) as it:
        assert it.size_bytes == 5
    with opened(tmp_path, AvailableBundle("b")) as it:
        assert it.size_bytes == 0
        it.append(b"other")
    with opened(tmp_path) as it:
        assert it.size_bytes == 0


@pytest.mark.parametrize("record", ["", "{}", '{"token": "a", "bytes": 99, "is_complete": true}', "[]", "\0"])
def test_a_record_that_does_not_fit_counts_for_nothing(tmp_path: Path, record: str) -> None:
    with opened(tmp_path) as it:
        it.append(b"first")
    (tmp_path / partial_archive.RECORD_NAME).write_text(record)
    with opened(tmp_path) as it:
        assert it.size_bytes == 0
        assert not it.is_complete


def test_bytes_that_no_record_vouches_for_do_not_count(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        it.append(b"first")
    with (tmp_path / partial_archive.ARCHIVE_NAME).open("ab") as file:
        file.write(b"garbled by a power failure")
    with opened(tmp_path) as it:
        assert it.size_bytes == 5
        assert it.path.read_bytes() == b"first"


def test_a_new_beginning_is_not_vouched_for_by_the_old_record(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        it.append(b"first")
    again = opened(tmp_path)
    again.restart()
    again.append(b"anew and longer")
    assert not (tmp_path / partial_archive.RECORD_NAME).exists()
    again.close()


def test_what_cannot_be_deleted_does_not_hide_why_it_was_to_be(tmp_path: Path) -> None:
    with opened(tmp_path) as partial:
        (tmp_path / partial_archive.RECORD_NAME).mkdir()
        with pytest.raises(BundleRefused, match="expected at most"):
            partial.expect(partial_archive.MAX_BYTES + 1)


def test_the_limit_holds_while_bytes_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_archive, "MAX_BYTES", 10)
    it = opened(tmp_path)
    it.append(b"0123456789")
    with pytest.raises(BundleRefused) as caught:
        it.append(b"x")
    assert caught.value.refusal is Refusal.TOO_LARGE
    assert list(tmp_path.iterdir()) == []


def test_a_complete_archive_is_known_as_such(tmp_path: Path) -> None:
    with opened(tmp_path) as it:
        it.append(b"whole")
        it.finish()
    with opened(tmp_path) as it:
        assert it.is_complete
        assert it.finish().read_bytes() == b"whole"


def test_bytes_are_on_the_disk_before_the_record_counts_them_and_not_at_each_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def written(*about: Any) -> None:
        steps.append("record")
        write_whole(*about)

    monkeypatch.setattr("upwell.edge.updates.sources.partial_archive.write_whole", written)
    monkeypatch.setattr(os, "fsync", lambda _: steps.append("bytes"))
    with opened(tmp_path) as it:
        for _ in range(3 * 16):
            it.append(bytes(partial_archive.CHECKPOINT_BYTES // 16))
        assert [step for step in steps if step == "record"] == ["record"] * 3
    assert steps[0] == "bytes"


def test_room_is_needed_for_the_contents_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = 1 << 30
    for free_bytes, is_enough in ((2 * size_bytes, True), (2 * size_bytes - 1, False)):
        usage = SimpleNamespace(free=free_bytes + partial_archive.SPARE_BYTES)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        with opened(tmp_path) as it, pytest.raises(FetchFailed) if not is_enough else contextlib.nullcontext():
            it.expect(size_bytes)


def test_what_came_whole_after_a_new_beginning_is_the_sender_s_fault(tmp_path: Path) -> None:
    offer = AvailableBundle("a", "0" * 64)
    with opened(tmp_path, offer) as it:
        it.append(b"begun")
    with opened(tmp_path, offer) as it:
        it.restart()
        it.append(b"something else")
        with pytest.raises(BundleRefused, match="SHA-256"):
            it.finish()


def test_a_copy_from_a_folder_goes_on_where_it_ended(tmp_path: Path) -> None:
    source_folder, into = tmp_path / "source", tmp_path / "into"
    source_folder.mkdir()
    archive = bundle_archive(source_folder / "v1.bundle.tar", 1)
    source = FolderSource(source_folder)
    offer = source.newest()
    assert offer is not None
    with opened(into, offer) as it:
        it.append(archive.read_bytes()[:1000])
    assert source.fetch(offer, into, nobody).read_bytes() == archive.read_bytes()
