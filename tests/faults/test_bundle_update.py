"""Updates of a bundle over links that break, from servers that offer what is not wanted: the old model goes on."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.bundle_servers import FileServer, Registry, need_registry
from tests.faults.bundles_for_tests import Signer, archive_of, bundle_archive, bundle_folder
from tests.faults.certificates import Authority
from tests.faults.proxy import Fault, Proxy
from tests.integration.spool.harness import until
from upwell.edge.bundle.bundle import Bundle, BundleRefused, Refusal
from upwell.edge.models.model_config import UpdatesSection
from upwell.edge.updates.sources.source_opening import open_source
from upwell.edge.updates.update_follower import UpdateFollower, UpdatePoller
from upwell.edge.updates.version_store import VersionStore

NAME = "digits.bundle.tar"
LINK_BYTES_PER_S = 125_000.0
"""1 Mbit/s."""


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path)


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Iterator[FileServer]:
    (tmp_path / "www").mkdir()
    with FileServer(tmp_path / "www", authority.sign("bundles")) as server:
        yield server


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    need_registry()
    with Registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


class Device:
    """A device with version 2 installed."""

    def __init__(self, folder: Path, signer: Signer) -> None:
        self.folder, self.signer = folder, signer
        self.store = VersionStore(folder / "state", "digits", signer.trust)
        self.store.downloads.mkdir()
        first = self.store.install(bundle_archive(self.store.downloads / NAME, 2, signer=signer))
        self.store.commit(first, "")
        self.activated: list[int] = []
        self.is_good = True

    def follow(self, source: str, ca: Path | None = None, digest: str = "") -> UpdateFollower:
        opened = open_source(source, digest=digest, ca=ca)
        self.follower = UpdateFollower(self.store, UpdatesSection(source=source, digest=digest), self.activate, opened)
        return self.follower

    def activate(self, bundle: Bundle) -> Callable[[], None]:
        if not self.is_good:
            raise BundleRefused(Refusal.FAILED_SELF_TEST, bundle.folder, "its golden vectors differ")
        return lambda: self.activated.append(bundle.version)

    @property
    def serves(self) -> int:
        """What would be served after a restart, verified."""
        bundle = VersionStore(self.folder / "state", "digits", self.signer.trust).open()
        return bundle.version if bundle else 0


@pytest.fixture
def device(tmp_path: Path, signer: Signer) -> Device:
    return Device(tmp_path, signer)


@pytest.mark.parametrize("resets", [pytest.param(False, marks=pytest.mark.exhaustive), True], ids=["FIN", "RST"])
def test_an_update_over_a_link_that_breaks_three_times_is_taken_up(
    device: Device, server: FileServer, authority: Authority, resets: bool
) -> None:
    size_bytes = bundle_archive(server.folder / NAME, 3, size=200_000, signer=device.signer).stat().st_size
    starts = updated_over(
        device, server, Fault(bytes_per_s=LINK_BYTES_PER_S, after_bytes=64_000, resets=resets), authority.ca
    )
    assert len(starts) == 4
    if not resets:  # what was in flight when the connection was reset is lost
        got = [later - start for start, later in itertools.pairwise(starts)]
        handshake_bytes, cut_record_bytes = 5000, 4096
        assert min(got) > 64_000 - handshake_bytes - cut_record_bytes
    assert device.follower.status.fetched_bytes == size_bytes  # each byte once
    assert device.follower.status.looks == {"failed": 3, "installed": 1}
    assert device.activated == [3]
    assert device.serves == 3


def test_without_tls_not_a_byte_is_lost(device: Device, tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    with FileServer(tmp_path / "www") as server:
        archive = bundle_archive(server.folder / NAME, 3, size=200_000, signer=device.signer)
        starts = updated_over(device, server, Fault(bytes_per_s=10 * LINK_BYTES_PER_S, after_bytes=64_000), None)
    heads_bytes = 2 * 64_000 - (starts[2] - starts[0])  # of two connections: answers to HEAD, and the head of the body
    assert heads_bytes < 2000
    assert device.follower.status.fetched_bytes == archive.stat().st_size
    assert device.serves == 3


def updated_over(device: Device, server: FileServer, fault: Fault, ca: Path | None) -> list[int]:
    """Update to version 3 over a link on which every connection suffers this; where each part was begun."""
    with Proxy(f"127.0.0.1:{server.port}") as link:
        link.call(lambda: setattr(link.down, "fault", fault))
        follower = device.follow(server.url(NAME, link.port), ca)
        updater = UpdatePoller([follower], retry_s=0.01, draw=lambda: 0.0)
        until(lambda: follower.status.installed == 3, "version 3")
        updater.close()
    asked = [one for one in server.asked if one.method == "GET"]
    assert [one.status for one in asked] == [200, *[206] * (len(asked) - 1)]
    starts = [one.start for one in asked]
    assert starts == sorted(set(starts))
    return starts


def test_a_blob_of_a_registry_is_taken_up_too(device: Device, registry: Registry) -> None:
    archive = bundle_archive(device.folder / NAME, 3, size=200_000, signer=device.signer)
    registry.push(archive, "digits:broken-link")
    with Proxy(registry.address) as link:
        fault = Fault(bytes_per_s=10 * LINK_BYTES_PER_S, after_bytes=60_000)
        link.call(lambda: setattr(link.down, "fault", fault))
        follower = device.follow(f"oci://{link.address}/digits:broken-link")
        updater = UpdatePoller([follower], retry_s=0.01, draw=lambda: 0.0)
        until(lambda: follower.status.installed == 3, "version 3")
        updater.close()
    assert follower.status.fetched_bytes == archive.stat().st_size
    assert follower.status.looks == {"failed": 3, "installed": 1}
    assert device.serves == 3


def truncated(device: Device) -> bytes:
    whole = bundle_archive(device.folder / "whole.bundle.tar", 3, signer=device.signer)
    return whole.read_bytes()[:-2500]


def tampered(device: Device) -> bytes:
    folder = bundle_folder(device.folder / "tampered", 3, signer=device.signer)
    (folder / "model.onnx").write_bytes(bytes(2000))
    return archive_of(folder, device.folder / "tampered.bundle.tar").read_bytes()


def made(version: int, **about: object) -> Callable[[Device], bytes]:
    def make(device: Device) -> bytes:
        named = {"signer": device.signer, **about}
        return bundle_archive(device.folder / "made.bundle.tar", version, **named).read_bytes()  # type: ignore[arg-type]

    return make


def strange(device: Device) -> bytes:
    return made(3, signer=Signer(device.folder, "stranger"))(device)


def portal(_: Device) -> bytes:
    return b"<html>captive portal</html>" * 100


REFUSED: list[tuple[Refusal, Callable[[Device], bytes]]] = [
    (Refusal.WRONG_SIGNATURE, strange),
    (Refusal.UNSIGNED, made(3, signer=None)),
    (Refusal.OLDER, made(1)),
    (Refusal.OLDER, made(2, size=2001)),
    (Refusal.OTHER_MODEL, made(3, name="pages")),
    (Refusal.TAMPERED, tampered),
    (Refusal.TRUNCATED, truncated),
    (Refusal.MALFORMED, portal),
]
each_refusal = pytest.mark.parametrize(("refusal", "make"), REFUSED, ids=[f"{one[0].value}" for one in REFUSED])


def check_refused(device: Device, follower: UpdateFollower, refusal: Refusal) -> None:
    """It is refused for this reason, and remembered; the bundle before stays."""
    assert follower.look() == "refused"
    fetched_bytes = follower.fetched_bytes
    assert follower.status.refusal is refusal
    assert follower.look() == "nothing_new"
    assert follower.fetched_bytes == fetched_bytes
    assert device.activated == []
    assert device.serves == 2
    assert {path.name for path in device.store.folder.iterdir()} == {"2", "floor.json", "state.json"}


@each_refusal
def test_what_a_web_server_must_not_replace_the_model_with(
    device: Device, server: FileServer, authority: Authority, refusal: Refusal, make: Callable[[Device], bytes]
) -> None:
    (server.folder / NAME).write_bytes(make(device))
    follower = device.follow(server.url(NAME), authority.ca)
    check_refused(device, follower, refusal)
    (server.folder / NAME).write_bytes(made(4)(device))
    assert follower.look() == "installed"
    assert device.serves == 4
    follower.close()


@each_refusal
def test_what_a_registry_must_not_replace_it_with(
    device: Device, registry: Registry, refusal: Refusal, make: Callable[[Device], bytes]
) -> None:
    archive = device.folder / NAME
    archive.write_bytes(make(device))
    registry.push(archive)
    follower = device.follow(f"oci://{registry.address}/digits:latest")
    check_refused(device, follower, refusal)
    archive.write_bytes(made(4)(device))
    registry.push(archive)
    assert follower.look() == "installed"
    assert device.serves == 4
    follower.close()


def test_another_digest_than_the_one_pinned_is_refused(
    device: Device, server: FileServer, authority: Authority
) -> None:
    data = made(3)(device)
    (server.folder / NAME).write_bytes(data)
    wanted = made(4)(device)
    digest = f"sha256:{hashlib.sha256(wanted).hexdigest()}"
    follower = device.follow(server.url(NAME), authority.ca, digest)
    check_refused(device, follower, Refusal.DIGEST_MISMATCH)
    (server.folder / NAME).write_bytes(wanted)
    assert follower.look() == "installed"
    follower.close()


def test_a_blob_that_the_registry_garbles_is_refused(device: Device, registry: Registry) -> None:
    archive = device.folder / NAME
    archive.write_bytes(made(3, size=2001)(device))
    registry.push(archive, "digits:garbled")
    blob = registry.blob(hashlib.sha256(archive.read_bytes()).hexdigest())
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    follower = device.follow(f"oci://{registry.address}/digits:garbled")
    check_refused(device, follower, Refusal.DIGEST_MISMATCH)
    follower.close()


def test_one_that_fails_its_self_test_leaves_the_old_one(
    device: Device, server: FileServer, authority: Authority
) -> None:
    (server.folder / NAME).write_bytes(made(3)(device))
    device.is_good = False
    follower = device.follow(server.url(NAME), authority.ca)
    check_refused(device, follower, Refusal.FAILED_SELF_TEST)
    follower.close()
