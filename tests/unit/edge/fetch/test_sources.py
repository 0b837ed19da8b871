"""Which source a text means, and bundles in a folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from tests.faults.bundles_for_tests import bundle_archive, bundle_folder
from upwell.edge.bundle.bundle import MANIFEST_NAME, BundleRefused, Refusal, sizes_in
from upwell.edge.bundle.open_bundle import open_archive, open_bundle
from upwell.edge.bundle.source_address import check_source, names_folder
from upwell.edge.updates.sources import folder_source
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Source
from upwell.edge.updates.sources.folder_source import FolderSource
from upwell.edge.updates.sources.source_opening import open_source
from upwell.shared.errors import ConfigError


def nobody(_there: int, _whole: int) -> None:
    pass


def offer_of(source: Source) -> AvailableBundle:
    offer = source.newest()
    assert offer is not None
    return offer


@pytest.mark.parametrize(
    "text",
    [
        "/srv/models",
        "models/digits",
        "file:///srv/models",
        "file://localhost/srv/models",
        "https://models.example.com/digits.bundle.tar",
        "https://models.example.com:8443/get?name=digits",
        "http://localhost:8080/digits.bundle.tar",
        "http://127.0.0.1/digits.bundle.tar",
        "http://[::1]:8080/digits.bundle.tar",
        "oci://registry.example.com/fleet/digits:1.2",
        "oci://localhost:5000/digits:latest",
        "oci://registry.example.com/digits@sha256:" + "0" * 64,
        "oci://registry.example.com/digits:1@sha256:" + "0" * 64,
    ],
)
def test_what_may_be_a_source(text: str) -> None:
    check_source(text)
    open_source(text).close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://models.example.com/digits.bundle.tar", "expected https://"),
        ("https://models.example.com", "expected a folder"),
        ("https:///digits.bundle.tar", "expected a folder"),
        ("https://models.example.com:port/x", "not an address"),
        ("https://user:secret@models.example.com/digits.bundle.tar", "netrc"),
        ("https://:secret@models.example.com/digits.bundle.tar", "netrc"),
        ("file://server/share", "expected a folder"),
        ("ftp://models.example.com/digits.bundle.tar", "expected a folder"),
        ("oci://registry.example.com/digits", "expected oci://"),
        ("oci://registry.example.com/Digits:1", "expected oci://"),
        ("oci://registry.example.com/../digits:1", "expected oci://"),
        ("oci://user@registry.example.com/digits:1", "expected oci://"),
        ("oci://registry.example.com/digits@sha256:0", "expected oci://"),
    ],
)
def test_what_may_not(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check_source(text)
    assert "secret" not in str(caught.value)


def test_a_folder_is_told_from_an_address() -> None:
    texts = ("models", "/srv/models", "C:/models", "file:///x", "https://host/x", "oci://host/x:1")
    assert [names_folder(text) for text in texts] == [True, True, True, False, False, False]


def test_the_issuers_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        open_source("https://models.example.com/x.bundle.tar", ca=tmp_path / "ca.pem")


def test_a_missing_package_is_named() -> None:
    program = (
        "import sys; sys.modules.update(oras=None, requests=None)\n"
        "from upwell.edge.updates.sources.source_opening import open_source\n"
        "open_source('/srv/models').close()\n"
        "for text in ('https://host/x.bundle.tar', 'oci://host/x:1'):\n"
        "    try: open_source(text)\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("ExtraMissing") and "pip install 'upwell[bundle]'" in line for line in lines)


def test_the_greatest_version_of_a_folder_is_offered(tmp_path: Path) -> None:
    offered = tmp_path / "offered"
    offered.mkdir()
    source = open_source(str(offered))
    assert source.newest() is None
    bundle_archive(offered / "b.bundle.tar", 9)
    bundle_folder(offered / "a", 10)
    bundle_archive(offered / "c.bundle.tar", 2)
    fetched = source.fetch(offer_of(source), tmp_path / "in", nobody)
    assert open_bundle(fetched).version == 10
    shutil.rmtree(offered / "a")
    offer = offer_of(source)
    fetched = source.fetch(offer, tmp_path / "in", nobody)
    assert open_archive(fetched, tmp_path / "unpacked").version == 9
    assert offer_of(source).token == offer.token
    bundle_archive(offered / "b.bundle.tar", 9, size=3000)
    assert offer_of(source).token != offer.token
    with pytest.raises(FetchFailed, match="is gone or has changed"):
        source.fetch(offer, tmp_path / "in", nobody)


def test_what_is_no_bundle_is_passed_over_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = bundle_archive(tmp_path / "whole.bundle.tar", 1).read_bytes()
    (tmp_path / "short.bundle.tar").write_bytes(whole[:600])
    (tmp_path / "noise.bundle.tar").write_bytes(b"noise" * 1000)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / MANIFEST_NAME).write_text('{"version": "two"}')
    with tarfile.open(tmp_path / "gnu.bundle.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(tmp_path / "folder" / MANIFEST_NAME, MANIFEST_NAME)
    (tmp_path / "bare.bundle.tar").write_bytes(bytes(1024))
    (tmp_path / "notes.txt").write_text("no bundle")
    (tmp_path / "plain").mkdir()
    source = open_source(str(tmp_path))
    for _ in range(2):
        assert offer_of(source).token.startswith("file whole.bundle.tar")
    no_tar = "not a tar file of POSIX (ustar); expected a plain tar file as `upwell model pack` writes it"
    assert [record.getMessage().removeprefix(f"{tmp_path}{os.sep}") for record in caplog.records] == [
        f"{name}: skipped, its manifest cannot be read: {why}"
        for name, why in {
            "bare.bundle.tar": "there is no manifest.json in it",
            "folder": "expected JSON with a whole `version` of 1 or more",
            "gnu.bundle.tar": no_tar,
            "noise.bundle.tar": no_tar,
            "short.bundle.tar": "there is no manifest.json in it",
        }.items()
    ]


def test_an_extension_of_any_size_takes_no_memory_and_hides_no_other_archive(tmp_path: Path) -> None:
    extension = tarfile.TarInfo("extension")
    extension.type = tarfile.XHDTYPE
    nested = extension.tobuf() * 2_000
    extension.size = 1 << 29
    (tmp_path / "large.bundle.tar").write_bytes(extension.tobuf())
    os.truncate(tmp_path / "large.bundle.tar", extension.size)
    (tmp_path / "nested.bundle.tar").write_bytes(nested)
    bundle_archive(tmp_path / "good.bundle.tar", version=1)
    source = FolderSource(tmp_path)
    tracemalloc.start()
    try:
        assert offer_of(source).token.startswith("file good.bundle.tar ")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.SYMTYPE])
def test_an_archive_that_unpacking_refuses_hides_no_other(tmp_path: Path, kind: bytes) -> None:
    extension = tarfile.TarInfo("extension")
    extension.type = kind
    newest = bundle_archive(tmp_path / "refused.bundle.tar", version=9)
    newest.write_bytes(extension.tobuf(tarfile.USTAR_FORMAT) + newest.read_bytes())
    bundle_archive(tmp_path / "good.bundle.tar", version=1)
    assert offer_of(FolderSource(tmp_path)).token.startswith("file good.bundle.tar ")


def test_a_pinned_digest_wants_an_archive(tmp_path: Path) -> None:
    data = bundle_archive(tmp_path / "a.bundle.tar", 1).read_bytes()
    bundle_folder(tmp_path / "b", 2)
    source = open_source(str(tmp_path), digest="sha256:" + hashlib.sha256(data).hexdigest())
    assert source.fetch(offer_of(source), tmp_path / "in", nobody).read_bytes() == data
    other = open_source(str(tmp_path), digest="sha256:" + "0" * 64)
    with pytest.raises(BundleRefused) as caught:
        other.fetch(offer_of(other), tmp_path / "other", nobody)
    assert caught.value.refusal is Refusal.DIGEST_MISMATCH


def test_a_folder_is_bounded_and_its_links_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "from").mkdir()
    folder = bundle_folder(tmp_path / "from" / "a", 1, size=5000)
    small = FolderSource(tmp_path / "from")
    with monkeypatch.context() as limited:
        limited.setattr(folder_source, "MAX_BYTES", 4000)
        with pytest.raises(BundleRefused) as caught:
            small.fetch(offer_of(small), tmp_path / "in", nobody)
    assert caught.value.refusal is Refusal.TOO_LARGE
    (tmp_path / "secret").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    source = open_source(str(tmp_path / "from"))
    fetched = source.fetch(offer_of(source), tmp_path / "in", nobody)
    assert (fetched / "link.txt").is_symlink()
    assert (fetched / "up").is_symlink()
    with pytest.raises(BundleRefused) as caught:
        sizes_in(fetched)
    assert caught.value.refusal is Refusal.UNCONFINED


def test_a_folder_that_is_gone_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="No such file"):
        open_source(str(tmp_path / "none")).newest()


def test_a_copy_ends_where_the_source_is_closed(tmp_path: Path) -> None:
    bundle_archive(tmp_path / "a.bundle.tar", 1)
    source = open_source(str(tmp_path))
    offer = offer_of(source)
    source.close()
    with pytest.raises(FetchFailed, match="stopped"):
        source.fetch(offer, tmp_path / "in", nobody)
