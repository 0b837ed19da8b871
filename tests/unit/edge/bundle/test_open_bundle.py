"""Opening bundles: each fault has its own refusal, and what is refused leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.edge.bundle.bundles import END, FILES, entry, keys, make, passphrase, plain_tar, signed, write
from upwell.edge.bundle import archive
from upwell.edge.bundle.archive import write_archive
from upwell.edge.bundle.bundle import MANIFEST_NAME, SIGNATURE_NAME, Bundle, BundleRefused, Refusal, Trust
from upwell.edge.bundle.bundle_signature import (
    Envelope,
    check_signature,
    private_key,
    signed_bytes,
    statement,
    write_envelope,
)
from upwell.edge.bundle.manifest import manifest_bytes
from upwell.edge.bundle.open_bundle import NO_TRUST, open_archive, open_bundle
from upwell.shared.errors import ConfigError

Fault = Callable[[Path], object]


def refused(opening: Callable[[], Bundle], refusal: Refusal, says: str = "") -> BundleRefused:
    with pytest.raises(BundleRefused) as caught:
        opening()
    assert caught.value.refusal is refusal, str(caught.value)
    assert says in str(caught.value)
    return caught.value


def test_a_bundle_opens(tmp_path: Path) -> None:
    made = make(tmp_path / "b", name="digits", version=3)
    told: list[int] = []
    assert open_bundle(tmp_path / "b", NO_TRUST, 2, told.append) == made
    assert made.version == 3
    assert sum(told) == sum(path.stat().st_size for path in (tmp_path / "b").rglob("*") if path.is_file())


def test_a_signed_bundle_says_by_whom(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "key")
    folder = signed(tmp_path / "b", private).folder
    assert len(open_bundle(folder, Trust((public,), require=True)).signed_by) == 64
    assert open_bundle(folder).signed_by == ""


FAULTS: dict[str, tuple[Fault, Refusal, str]] = {
    "a byte of a model": (lambda b: flip(b / "model.onnx"), Refusal.TAMPERED, "does not match"),
    "a model cut short": (lambda b: os.truncate(b / "model.onnx", 100), Refusal.TRUNCATED, "has 100 bytes"),
    "a model grown": (lambda b: (b / "labels.txt").write_text("a\nb\nc\n"), Refusal.TAMPERED, "has 6 bytes"),
    "a file more": (lambda b: (b / "more" / "x").touch(), Refusal.TAMPERED, "not listed"),
    "a file more with contents": (lambda b: (b / "more" / "x").write_text("x"), Refusal.TAMPERED, "not listed"),
    "a file less": (lambda b: (b / "labels.txt").unlink(), Refusal.TAMPERED, "missing"),
    "a hidden file": (lambda b: (b / ".DS_Store").touch(), Refusal.UNCONFINED, "hidden"),
    "a link": (lambda b: relink(b / "labels.txt"), Refusal.UNCONFINED, "it is a link"),
    "a link to a folder": (lambda b: relink(b / "more"), Refusal.UNCONFINED, "it is a link"),
    "a folder for a file": (lambda b: refolder(b / "labels.txt"), Refusal.TAMPERED, "missing"),
    "a manifest cut short": (lambda b: os.truncate(b / MANIFEST_NAME, 100), Refusal.MALFORMED, MANIFEST_NAME),
    "no manifest": (lambda b: (b / MANIFEST_NAME).unlink(), Refusal.MALFORMED, "signs nothing"),
    "no manifest for the link": (lambda b: dangle(b / MANIFEST_NAME), Refusal.UNCONFINED, "it is a link"),
    "another manifest": (lambda b: reversion(b, 9), Refusal.WRONG_SIGNATURE, "covers other files: 'manifest.json'"),
    "nothing at all": (shutil.rmtree, Refusal.MISSING, "no such folder"),
}


NEVER_PACKED = ("a link", "a link to a folder", "a hidden file", "no manifest for the link", "nothing at all")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def relink(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to("../elsewhere")


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def refolder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def reversion(folder: Path, version: int) -> None:
    manifest = make(folder, {}, version=version).manifest
    assert manifest is not None
    (folder / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))


@pytest.mark.parametrize("what", FAULTS)
def test_each_fault_has_its_own_refusal(tmp_path: Path, what: str) -> None:
    fault, refusal, says = FAULTS[what]
    private, public = keys(tmp_path, "key")
    folder = signed(tmp_path / "b", private).folder
    fault(folder)
    refused(lambda: open_bundle(folder, Trust((public,), require=True)), refusal, says)


@pytest.mark.parametrize("place", range(4))
def test_a_byte_of_any_file_matters(tmp_path: Path, place: int) -> None:
    private, public = keys(tmp_path, "key")
    folder = signed(tmp_path / "b", private).folder
    path = sorted(one for one in folder.rglob("*") if one.is_file() and one.stat().st_size)[place]
    flip(path)
    with pytest.raises(BundleRefused):
        open_bundle(folder, Trust((public,)))


def test_a_signature_of_fewer_files_is_refused(tmp_path: Path) -> None:
    """A file that was added together with a new manifest is in nobody's signature."""
    private, public = keys(tmp_path, "key")
    folder = signed(tmp_path / "b", private).folder
    manifest = (folder / MANIFEST_NAME).read_bytes()
    make(folder, {"added": b"x"})
    refused(lambda: open_bundle(folder, Trust((public,))), Refusal.WRONG_SIGNATURE, "other files: 'added'")
    (folder / "added").unlink()
    (folder / MANIFEST_NAME).write_bytes(manifest)
    assert open_bundle(folder, Trust((public,))).signed_by


def test_a_signature_of_more_files_is_refused(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "key")
    folder = signed(tmp_path / "b", private).folder
    found = check_signature(folder, Trust((public,)))
    assert found is not None
    payload = statement("digits", {**found.digests, "removed": "0" * 64})
    signature = private_key(private, passphrase).sign(signed_bytes(payload))
    (folder / SIGNATURE_NAME).write_bytes(write_envelope(Envelope(payload, signature, "")))
    refused(lambda: open_bundle(folder, Trust((public,))), Refusal.WRONG_SIGNATURE, "other files: 'removed'")


def test_a_version_must_be_greater(tmp_path: Path) -> None:
    folder = make(tmp_path / "b", version=3).folder
    assert open_bundle(folder, newer_than=2).version == 3
    refused(lambda: open_bundle(folder, newer_than=3), Refusal.OLDER, "version 3 is installed")
    refused(lambda: open_bundle(folder, newer_than=4), Refusal.OLDER, "older than the installed version 4")


def test_a_stolen_version_is_a_wrong_signature_and_not_an_old_one(tmp_path: Path) -> None:
    private, _ = keys(tmp_path, "key")
    _, other = keys(tmp_path, "other")
    folder = signed(tmp_path / "b", private, version=3).folder
    refused(lambda: open_bundle(folder, Trust((other,)), 3), Refusal.WRONG_SIGNATURE)


def test_a_plain_folder_is_a_bundle_of_no_version(tmp_path: Path) -> None:
    folder = write(tmp_path / "b", {**FILES, ".hidden": b""})
    assert open_bundle(folder) == Bundle(folder)
    refused(lambda: open_bundle(folder, Trust(require=True)), Refusal.UNSIGNED, "upwell model pack")
    for installed in (0, 1):
        refused(partial(open_bundle, folder, newer_than=installed), Refusal.OLDER, "no version")
    (folder / SIGNATURE_NAME).symlink_to("nowhere")
    refused(lambda: open_bundle(folder), Refusal.MALFORMED, "signs nothing")


@pytest.mark.parametrize("labels", ["/etc/hostname", "../secret.txt", "a/../../secret.txt", "~/secret", "..\\secret"])
@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nsignature: {{inputs: {{}}, outputs: {{scores: {{kind: logits, labels: '{}'}}}}}}\n",
        "version: 1\npost: [{{labels: {{from: scores, labels: '{}'}}}}]\n",
        "version: 1\ngolden: {{file: '{}'}}\n",
        "version: 1\nsignature: {{inputs: {{text: {{kind: text, tokenizer: '{}'}}}}}}\n",
        "version: 1\nruntimes: {{onnx: {{post: [{{labels: {{labels: '{}'}}}}]}}}}\n",
    ],
)
def test_labels_come_from_the_bundle_alone(tmp_path: Path, text: str, labels: str) -> None:
    """They are shown to every caller, so a bundle could show any file of the device."""
    folder = make(tmp_path / "b", {"model.yaml": text.format(labels).encode()}).folder
    refused(lambda: open_bundle(folder), Refusal.UNCONFINED, labels.replace("\\", "\\\\"))


def test_a_name_in_braces_is_one_of_labels_and_a_whole_tokenizer(tmp_path: Path) -> None:
    for key, is_refused in (("labels", True), ("tokenizer", False)):
        folder = make(tmp_path / key, {"model.yaml": f"{key}: '{{/../../secret'".encode()}).folder
        if is_refused:
            refused(partial(open_bundle, folder), Refusal.UNCONFINED, "{/../../secret")
        else:
            assert open_bundle(folder).version == 3


def test_a_description_beside_a_model_of_any_name_and_in_any_folder_names_files_of_the_bundle(tmp_path: Path) -> None:
    text = "golden: {file: '../labels.txt'}"
    folder = make(tmp_path / "b", {**FILES, "more/digits.onnx": b"", "more/digits.yaml": text.encode()}).folder
    assert open_bundle(folder).version == 3
    folder = make(tmp_path / "c", {**FILES, "digits.tflite": b"", "digits.yaml": text.encode()}).folder
    refused(lambda: open_bundle(folder), Refusal.UNCONFINED, "'../labels.txt', which is not in the bundle")


def test_labels_of_the_bundle_are_let_through(tmp_path: Path) -> None:
    outputs, steps = "{scores: {labels: ./more/../labels.txt}}", "[{labels: /scores}, {labels: {from: /x}}]"
    text = f"signature: {{outputs: {outputs}}}\npost: {steps}"
    make(tmp_path / "b", {"model.yaml": text.encode()})
    assert open_bundle(tmp_path / "b").version == 3


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80) | st.text("{}[]:,-&*a \n'\"!labesgodnfi", max_size=60).map(str.encode))
def test_no_description_whatever_does_more_than_refuse_the_bundle(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), {"model.yaml": data})
        with contextlib.suppress(BundleRefused):
            open_bundle(Path(name))


# --- Archives


def archive_of(tmp_path: Path, bundle: Bundle) -> Path:
    path = tmp_path / "x.bundle.tar"
    write_archive(path, bundle.folder)
    shutil.rmtree(bundle.folder)
    return path


def test_an_archive_becomes_a_folder(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "key")
    bundle = signed(tmp_path / "b", private)
    path, into, told = archive_of(tmp_path, bundle), tmp_path / "into", list[int]()
    opened = open_archive(path, into, Trust((public,), require=True), 2, advance=told.append)
    assert opened == Bundle(into, bundle.manifest, opened.signed_by)
    assert open_bundle(into, Trust((public,), require=True)) == opened
    assert into.stat().st_mode & 0o777 == 0o755
    assert (
        sum(told)
        == 2 * sum(one.stat().st_size for one in into.rglob("*") if one.is_file())
        - (into / SIGNATURE_NAME).stat().st_size
    )
    assert sorted(os.listdir(tmp_path)) == ["into", "key.pem", "key.pub.pem", "x.bundle.tar"]


@pytest.mark.parametrize("what", [name for name in FAULTS if name not in NEVER_PACKED])
def test_a_refused_archive_leaves_nothing_and_is_named(tmp_path: Path, what: str) -> None:
    fault, refusal, says = FAULTS[what]
    private, public = keys(tmp_path, "key")
    bundle = signed(tmp_path / "b", private)
    fault(bundle.folder)
    path = archive_of(tmp_path, bundle)
    before = sorted(os.listdir(tmp_path))
    says = "contains no manifest.json" if what == "no manifest" else says
    error = refused(lambda: open_archive(path, tmp_path / "into", Trust((public,), require=True)), refusal, says)
    assert [problem.path for problem in error.problems] == [path]
    assert sorted(os.listdir(tmp_path)) == before


def test_every_way_of_cutting_an_archive_short_is_truncated(tmp_path: Path) -> None:
    path = archive_of(tmp_path, make(tmp_path / "b"))
    whole = path.read_bytes()
    for size in (0, 1, 511, 512, 700, len(whole) // 2, len(whole) - 1025, len(whole) - 1024, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(lambda: open_archive(path, tmp_path / "into"), Refusal.TRUNCATED)


def test_an_archive_without_a_manifest_is_malformed(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(plain_tar(FILES))
    refused(lambda: open_archive(tmp_path / "x.tar", tmp_path / "into"), Refusal.MALFORMED, "contains no manifest.json")
    (tmp_path / "x.tar").write_bytes(entry("manifest.json/x") + END)
    refused(lambda: open_archive(tmp_path / "x.tar", tmp_path / "into"), Refusal.MALFORMED, "contains no manifest.json")


def test_the_version_in_an_archive_must_be_greater_too(tmp_path: Path) -> None:
    path = archive_of(tmp_path, make(tmp_path / "b", version=3))
    refused(lambda: open_archive(path, tmp_path / "into", newer_than=3), Refusal.OLDER, "version 3 is installed")
    assert open_archive(path, tmp_path / "into", newer_than=2).version == 3


def test_limits_hold_for_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive_of(tmp_path, make(tmp_path / "b"))
    monkeypatch.setattr(archive, "MAX_BYTES", 100)
    refused(lambda: open_archive(path, tmp_path / "into"), Refusal.TOO_LARGE)


def test_what_is_there_stays(tmp_path: Path) -> None:
    path = archive_of(tmp_path, make(tmp_path / "b"))
    (tmp_path / "into").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        open_archive(path, tmp_path / "into")
    assert sorted(os.listdir(tmp_path)) == ["into", "x.bundle.tar"]


def test_a_device_without_cryptography_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = keys(tmp_path, "key")
    folder = signed(tmp_path / "b", private).folder
    monkeypatch.delitem(sys.modules, "upwell.edge.bundle.signing_keys")
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(ConfigError, match=r"pip install 'upwell\[bundle\]'"):
        open_bundle(folder, Trust((public,)))
    assert open_bundle(folder).version == 3
