"""Archives: the same files give the same bytes, and a stranger's archive writes nothing where it should not."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.edge.bundle.bundles import END, FILES, entry, header, plain_tar, write
from upwell.edge.bundle import archive as archive_module
from upwell.edge.bundle.archive import unpacked, write_archive
from upwell.edge.bundle.bundle import CHUNK_BYTES, BundleRefused, Refusal
from upwell.shared.errors import ConfigError


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(tmp_path: Path, data: bytes) -> BundleRefused:
    """Why an archive of these bytes is refused; nothing but the archive is there afterwards."""
    archive = tmp_path / "x.bundle.tar"
    archive.write_bytes(data)
    with pytest.raises(BundleRefused) as caught, unpacked(archive, tmp_path / "into"):
        pytest.fail("it was unpacked")
    assert os.listdir(tmp_path) == [archive.name]
    assert caught.value.problems[0].path == archive
    return caught.value


def test_files_come_back(tmp_path: Path) -> None:
    write(tmp_path / "folder", FILES)
    write_archive(tmp_path / "x.tar", tmp_path / "folder")
    with unpacked(tmp_path / "x.tar", tmp_path / "into") as folder:
        assert contents(folder) == FILES
        assert folder.parent == tmp_path
    assert sorted(os.listdir(tmp_path)) == ["folder", "x.tar"]


def test_the_bytes_depend_on_the_files_alone(tmp_path: Path) -> None:
    write(tmp_path / "one", FILES)
    write(tmp_path / "two", dict(sorted(FILES.items(), reverse=True)))
    (tmp_path / "two" / "empty").mkdir()
    (tmp_path / "two" / "model.onnx").chmod(0o600)
    os.utime(tmp_path / "two" / "model.onnx", (1, 1))
    for name in ("one", "two"):
        write_archive(tmp_path / f"{name}.tar", tmp_path / name)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_any_tar_reads_what_is_written(tmp_path: Path) -> None:
    write_archive(tmp_path / "x.tar", write(tmp_path / "folder", FILES))
    with tarfile.open(tmp_path / "x.tar") as archive:
        assert archive.getnames() == sorted(FILES)
        assert {(one.mtime, one.uid, one.gid, one.uname, one.mode) for one in archive} == {(0, 0, 0, "", 0o644)}


def test_a_tar_of_another_writer_is_read_with_its_folders(tmp_path: Path) -> None:
    data = entry("more", kind=tarfile.DIRTYPE) + plain_tar(FILES)
    (tmp_path / "x.tar").write_bytes(data)
    with unpacked(tmp_path / "x.tar", tmp_path / "into") as folder:
        assert contents(folder) == FILES


def test_every_byte_is_told(tmp_path: Path) -> None:
    told: list[int] = []
    write_archive(tmp_path / "x.tar", write(tmp_path / "folder", FILES), told.append)
    with unpacked(tmp_path / "x.tar", tmp_path / "into", advance=told.append):
        assert sum(told) == 2 * sum(map(len, FILES.values()))


GOOD = entry("a.txt", b"abc")


@pytest.mark.parametrize(
    ("data", "refusal", "says"),
    [
        (b"", Refusal.TRUNCATED, "ends after 0 bytes"),
        (GOOD, Refusal.TRUNCATED, "without an end-of-archive marker"),
        (GOOD + END[:512], Refusal.TRUNCATED, "without an end-of-archive marker"),
        (GOOD[:700], Refusal.TRUNCATED, "in the middle of a.txt"),
        (GOOD[:300], Refusal.TRUNCATED, "ends after 300 bytes"),
        (header("big", 1 << 30) + b"x", Refusal.TRUNCATED, "in the middle of big"),
        (b"no tar at all".ljust(2048), Refusal.MALFORMED, "not a tar file"),
        (
            gzip.compress(plain_tar(FILES) + random.Random(0).randbytes(2000), mtime=0),
            Refusal.MALFORMED,
            "not a tar file",
        ),
        (GOOD.replace(b"a.txt", b"b.txt", 1) + END, Refusal.MALFORMED, "bad checksum"),
        (GOOD + END + GOOD + END, Refusal.MALFORMED, "data after the end-of-archive marker"),
        (GOOD + END[:512] + GOOD + END, Refusal.MALFORMED, "data after the end-of-archive marker"),
        (GOOD + END + bytes(CHUNK_BYTES) + GOOD, Refusal.MALFORMED, "data after the end-of-archive marker"),
        (header("folder/", 512, tarfile.DIRTYPE) + bytes(512) + END, Refusal.MALFORMED, "impossible size"),
        (entry("/etc/passwd") + END, Refusal.UNCONFINED, "points outside"),
        (entry("../x") + END, Refusal.UNCONFINED, "points outside"),
        (entry("a/../../x") + END, Refusal.UNCONFINED, "points outside"),
        (entry("./a") + END, Refusal.UNCONFINED, "hidden"),
        (entry("..", kind=tarfile.DIRTYPE) + END, Refusal.UNCONFINED, "points outside"),
        (entry("link", kind=tarfile.SYMTYPE, link="/etc/passwd") + END, Refusal.UNCONFINED, "a link"),
        (GOOD + entry("link", kind=tarfile.LNKTYPE, link="a.txt") + END, Refusal.UNCONFINED, "a link"),
        (entry("device", kind=tarfile.CHRTYPE) + END, Refusal.UNCONFINED, "a device"),
        (entry("pipe", kind=tarfile.FIFOTYPE) + END, Refusal.UNCONFINED, "a device"),
        (entry("pax", b"30 path=../../x\n", tarfile.XHDTYPE) + GOOD + END, Refusal.UNCONFINED, "an extension"),
        (entry("pax", b"30 path=../../x\n", tarfile.XGLTYPE) + GOOD + END, Refusal.UNCONFINED, "an extension"),
        (GOOD + GOOD + END, Refusal.UNCONFINED, "the same file on some systems"),
        (GOOD + entry("A.TXT") + END, Refusal.UNCONFINED, "the same file on some systems"),
        (GOOD + entry("a.txt/b") + END, Refusal.UNCONFINED, "the same file on some systems"),
        (entry("a.txt", kind=tarfile.DIRTYPE) + GOOD + END, Refusal.UNCONFINED, "the same file on some systems"),
    ],
)
def test_what_is_refused(tmp_path: Path, data: bytes, refusal: Refusal, says: str) -> None:
    error = refused(tmp_path, data)
    assert error.refusal is refusal
    assert says in str(error)


def test_a_name_that_no_text_holds_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, entry("é.txt") + END).refusal is Refusal.MALFORMED


@pytest.mark.parametrize("size", [b"\xff" * 12, b"-0000000001 ", b"\x80" + b"\xff" * 11])
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, size: bytes) -> None:
    raw = bytearray(header("a.txt"))
    raw[124:136] = size
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    assert refused(tmp_path, bytes(raw) + END).refusal in (Refusal.MALFORMED, Refusal.TOO_LARGE)


def test_limits_are_checked_by_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive promises a gigabyte and has none of it: the promise is too large before the lack is noticed."""
    monkeypatch.setattr(archive_module, "MAX_BYTES", 1 << 20)
    error = refused(tmp_path, header("big", 1 << 30))
    assert error.refusal is Refusal.TOO_LARGE
    assert "1048576 bytes" in str(error)
    two = entry("a.txt", b"abc") + entry("b.txt", b"abc") + END
    monkeypatch.setattr(archive_module, "MAX_BYTES", 5)
    assert refused(tmp_path, two).refusal is Refusal.TOO_LARGE
    many = b"".join(entry(f"folder{n}", kind=tarfile.DIRTYPE) for n in range(3)) + GOOD + END
    monkeypatch.setattr(archive_module, "MAX_ENTRIES", 3)
    assert refused(tmp_path, many).refusal is Refusal.TOO_LARGE
    monkeypatch.setattr(archive_module, "MAX_ENTRIES", 4)
    monkeypatch.setattr(archive_module, "MAX_BYTES", 3)
    (tmp_path / "x.bundle.tar").write_bytes(many)
    with unpacked(tmp_path / "x.bundle.tar", tmp_path / "into") as folder:
        assert contents(folder) == {"a.txt": b"abc"}


def test_no_archive_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BundleRefused, match="No such file") as caught, unpacked(tmp_path / "x", tmp_path / "into"):
        pytest.fail("it was unpacked")
    assert caught.value.refusal is Refusal.MISSING


def test_a_folder_that_cannot_be_written_is_no_fault_of_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(GOOD + END)
    with (
        pytest.raises(ConfigError, match="cannot be written") as caught,
        unpacked(tmp_path / "x.tar", tmp_path / "no/i"),
    ):
        pytest.fail("it was unpacked")
    assert not isinstance(caught.value, BundleRefused)


def test_too_many_files_are_not_packed(tmp_path: Path) -> None:
    write(tmp_path / "folder", {f"{n}.txt": b"" for n in range(archive_module.MAX_ENTRIES + 1)})
    with pytest.raises(BundleRefused) as caught:
        write_archive(tmp_path / "x.tar", tmp_path / "folder")
    assert caught.value.refusal is Refusal.TOO_LARGE
    assert os.listdir(tmp_path) == ["folder"]


def test_too_many_bytes_are_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "folder", {"a": b"abc", "b": b"abc"})
    monkeypatch.setattr(archive_module, "MAX_BYTES", 5)
    with pytest.raises(BundleRefused) as caught:
        write_archive(tmp_path / "x.tar", folder)
    assert caught.value.refusal is Refusal.TOO_LARGE
    monkeypatch.setattr(archive_module, "MAX_BYTES", 6)
    write_archive(tmp_path / "x.tar", folder)


def test_a_file_that_shrinks_meanwhile_is_not_packed(tmp_path: Path) -> None:
    folder = write(tmp_path / "folder", {"a": b"abc", "b": b"abc"})
    with pytest.raises(ConfigError, match="b: shrank while it was being read"):
        write_archive(tmp_path / "x.tar", folder, advance=lambda _: os.truncate(folder / "b", 2))
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("name", [".hidden", "é", "CON"])
def test_names_that_fit_no_bundle_are_not_packed(tmp_path: Path, name: str) -> None:
    write(tmp_path / "folder", {"a": b"", f"b/{name}": b""})
    with pytest.raises(BundleRefused) as caught:
        write_archive(tmp_path / "x.tar", tmp_path / "folder")
    assert caught.value.refusal is Refusal.UNCONFINED
    assert os.listdir(tmp_path) == ["folder"]


def test_names_that_clash_on_some_systems_are_not_packed(tmp_path: Path) -> None:
    write(tmp_path / "folder", {"a": b"", "A": b""})
    if len(os.listdir(tmp_path / "folder")) == 2:  # as here they do not
        with pytest.raises(BundleRefused, match="the same file on some systems"):
            write_archive(tmp_path / "x.tar", tmp_path / "folder")


def test_links_and_pipes_are_not_packed(tmp_path: Path) -> None:
    for make in (lambda path: path.symlink_to("/etc/passwd"), os.mkfifo, lambda path: path.symlink_to(tmp_path)):
        folder = write(Path(tempfile.mkdtemp(dir=tmp_path)), {"a": b""})
        make(folder / "b")
        with pytest.raises(BundleRefused) as caught:
            write_archive(tmp_path / "x.tar", folder)
        assert caught.value.refusal is Refusal.UNCONFINED


_GOOD_NAMES = st.sampled_from(["a", "b", "c/d", "c/e", "model.onnx", "x/y/z"])
_EVIL_NAMES = st.one_of(
    st.sampled_from(["A", "a/b", "../x", "/x", "a/../../x", "./a", "a//b", "c:\\x", "..", "", "a\0b"]),
    st.text("ab/.\\ ", max_size=8),
)
_EVIL_KINDS = st.sampled_from([*b"0123456789xgLKS", 0]).map(lambda kind: bytes([kind]))
_LINKS = st.sampled_from(["", "/etc", "..", "a", "../../x"])


def rarely(draw: st.DrawFn, share: int) -> bool:
    """True in about one of `share` cases."""
    return draw(st.integers(1, share)) == share


def with_checksum(block: bytearray) -> bytes:
    """The header with the checksum that it should have: whoever forges one gets it right."""
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """Archives of all kinds: most entries are good, some are evil or forged, and some archives are damaged."""
    data = b""
    for _ in range(draw(st.integers(0, 4))):
        name = draw(_EVIL_NAMES if rarely(draw, 8) else _GOOD_NAMES)
        kind = draw(_EVIL_KINDS) if rarely(draw, 8) else tarfile.REGTYPE
        made = bytearray(entry(name, draw(st.binary(max_size=600)), kind, draw(_LINKS)))
        if rarely(draw, 4):
            made[draw(st.integers(0, 511))] = draw(st.integers(0, 255))
            made[:512] = with_checksum(made[:512])
        data += bytes(made)
    data += draw(st.sampled_from([END[:512], b"", END + b"x"])) if rarely(draw, 6) else END
    raw = bytearray(data[: draw(st.integers(0, len(data)))] if rarely(draw, 6) else data)
    if raw and rarely(draw, 6):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw)


def everything(folder: Path) -> Mapping[str, bytes | None]:
    """What is there: files with their contents, folders and links as None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in folder.rglob("*")
    }


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(archives())
def test_nothing_is_ever_written_outside(data: bytes) -> None:
    """Whatever the bytes are, they are refused as a bundle, or unpack to plain files in the new folder alone."""
    with tempfile.TemporaryDirectory() as name:
        outer = Path(name)
        home = outer / "home"
        home.mkdir()
        (home / "x.tar").write_bytes(data)
        (outer / "x").write_bytes(b"mine")
        before = everything(outer)
        try:
            with unpacked(home / "x.tar", home / "into") as folder:
                here = everything(folder)
                new = {key for key in everything(outer) if key not in before}
                assert new == {str(folder.relative_to(outer) / key) for key in (".", *here)}
                assert not any(path.is_symlink() for path in folder.rglob("*"))
                with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                    files = {one.name: archive.extractfile(one) for one in archive if one.isfile()}
                assert {key: value for key, value in here.items() if value is not None} == {
                    key: file.read() for key, file in files.items() if file is not None
                }
        except BundleRefused:
            pass
        assert everything(outer) == before
