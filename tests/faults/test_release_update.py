"""Releases over a real web server that fails, lies or was taken over: handled as TUF's specification says."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.clockless import ClocklessPoller
from tests.faults.bundle_servers import FileServer, Registry, need_registry
from tests.faults.bundles_for_tests import Signer
from tests.faults.proxy import Fault, Proxy
from tests.faults.releases_for_tests import Releases
from tests.integration.agent.versions import MODEL, Publisher
from tests.integration.spool.harness import until
from tests.unit.edge.agents import edge_model
from upwell.edge.bundle.bundle import Bundle, BundleRefused, Refusal, Trust
from upwell.edge.bundle.open_bundle import NO_TRUST
from upwell.edge.models.edge_model import EdgeModel
from upwell.edge.updates.releases import release_source, repository_transport
from upwell.edge.updates.releases.device_floor import DeviceFloor
from upwell.edge.updates.releases.fleet_choice import FleetChoice, KeptFleetChoice
from upwell.edge.updates.releases.release_config import ReleaseSection
from upwell.edge.updates.releases.release_document import parse_document
from upwell.edge.updates.releases.release_follower import ReleaseFollower
from upwell.edge.updates.releases.release_source import NO_CLOCK, ReleaseSource
from upwell.edge.updates.releases.release_start import ReleaseStart
from upwell.edge.updates.releases.release_switching import ReleaseSurroundings
from upwell.edge.updates.releases.shadow_follower import SHADOW_NAME, ShadowFollower
from upwell.edge.updates.sources.base import FetchFailed
from upwell.edge.updates.sources.source_opening import open_source
from upwell.edge.updates.update_follower import UpdatePoller
from upwell.edge.updates.version_store import GONE_BACK, VersionStore
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.policy import Policy
from upwell.tools.release.repository_editor import mirror


class Device:
    """A device that follows a repository, with its own state; `served` are the releases that it switched to."""

    def __init__(self, folder: Path, source: str, root: Path, floor: DeviceFloor | None = None) -> None:
        self.folder = folder
        self.section = ReleaseSection(source=source, root=root, clock="trusted")
        self.store = VersionStore(folder, "the release", NO_TRUST, None, folder / "units")
        self.choice = KeptFleetChoice(folder / "choice.json")
        self.source = ReleaseSource(self.section, folder, self.store, self.choice, floor or DeviceFloor(Policy()))
        self.served: list[int] = []
        self.testing: Callable[[], object] = lambda: None
        self.follower = ReleaseFollower(self.store, self.section, self.activate, self.source, self.choice, "")

    def activate(self, bundle: Bundle) -> Callable[[], None]:
        self.testing()
        return lambda: self.served.append(bundle.version)

    def refuses(self, refusal: Refusal) -> str:
        """Look, and be refused for this reason while what is installed stays; the message."""
        before = self.store.state.current
        assert self.follower.look() == "refused"
        assert self.follower.status.refusal is refusal, self.follower.status
        assert self.store.state.current == before
        assert VersionStore(self.folder, "the release", NO_TRUST, None, self.folder / "units").state.current == before
        return self.follower.status.message


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "repository")


@pytest.fixture
def policy(tmp_path: Path) -> Callable[[int], Path]:
    """A policy that differs by a number: the cheapest release."""

    def make(deadline_s: int) -> Path:
        path = tmp_path / f"policy-{deadline_s}.yaml"
        path.write_text(f"version: 1\ndefaults: {{deadline: {deadline_s}s}}\n")
        return path

    return make


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "www").mkdir()
    with FileServer(tmp_path / "www") as server:
        yield server


@pytest.fixture
def device(tmp_path: Path, releases: Releases, server: FileServer, policy: Callable[[int], Path]) -> Device:
    """One with release 1 installed."""
    releases.release(policy=policy(1))
    mirror(releases.editor, server.folder)
    device = Device(tmp_path / "device", server.url(""), releases.root)
    assert device.follower.look() == "installed"
    assert device.served == [1]
    return device


def test_a_new_release_is_taken_once_and_an_old_one_as_a_new_sequence_alone(
    device: Device, releases: Releases, server: FileServer, policy: Callable[[int], Path]
) -> None:
    assert device.follower.look() == "nothing_new"
    releases.release(policy=policy(2))
    mirror(releases.editor, server.folder)
    assert device.follower.look() == "installed"
    device.store.prove(2)
    device.choice.keep(FleetChoice(sequence=1))
    assert "is older than release 2" in device.refuses(Refusal.OLDER)
    device.choice.keep(FleetChoice(sequence=0))
    assert "what agent.yaml names is older than release 2" in device.refuses(Refusal.OLDER)
    device.choice.keep(FleetChoice())
    releases.release(like=1)
    mirror(releases.editor, server.folder)
    assert device.follower.look() == "installed"
    assert device.served == [1, 2, 3]
    kept = json.loads((device.store.folder / "3/release.json").read_text())["policy"]["sha256"]
    assert kept == hashlib.sha256(policy(1).read_bytes()).hexdigest()


def test_a_choice_holds_over_a_restart(
    device: Device, releases: Releases, server: FileServer, policy: Callable[[int], Path]
) -> None:
    for number in (2, 3):
        releases.release(policy=policy(number))
    mirror(releases.editor, server.folder)
    device.choice.keep(FleetChoice(sequence=2, not_before_unix_s=time.time() + 3600))
    assert device.follower.look() == "nothing_new"
    KeptFleetChoice(device.folder / "choice.json").keep(FleetChoice(sequence=2))
    again = Device(device.folder, device.section.source, releases.root)
    assert again.follower.look() == "installed"
    assert again.served == [2]
    again.choice.keep(FleetChoice(sequence=9))
    with pytest.raises(FetchFailed, match="release 9 is not there yet"):
        again.follower.look()


def test_a_release_that_is_taken_back_while_it_is_fetched_or_tested_is_not_served(
    device: Device, releases: Releases, server: FileServer, policy: Callable[[int], Path]
) -> None:
    def takes_back(_there: int, _whole: int) -> None:
        device.choice.keep(FleetChoice(sequence=1))

    releases.release(policy=policy(2))
    mirror(releases.editor, server.folder)
    with pytest.raises(FetchFailed, match="release 2 is not installed: 1 was chosen meanwhile"):
        device.follower.look(takes_back)
    device.choice.keep(FleetChoice())
    device.testing = lambda: device.choice.keep(FleetChoice(sequence=1))
    with pytest.raises(FetchFailed, match="release 2 is not installed: 1 was chosen meanwhile"):
        device.follower.look()
    assert (device.store.state.current, device.store.state.blocklist, device.served) == (1, {}, [1])
    device.choice.keep(FleetChoice())
    device.testing = lambda: None
    assert device.follower.look() == "installed"
    assert device.served == [1, 2]


def test_a_release_that_was_given_back_without_a_fault_is_taken_once_it_is_chosen_again(
    device: Device, releases: Releases, server: FileServer, policy: Callable[[int], Path]
) -> None:
    releases.release(policy=policy(2))
    mirror(releases.editor, server.folder)
    assert device.follower.look() == "installed"
    device.store.block(2, GONE_BACK, 1)
    assert "the previous release was chosen" in device.refuses(Refusal.BLOCKLISTED)  # though it is the newest
    device.choice.keep(FleetChoice(sequence=2))
    assert device.follower.look() == "installed"
    assert (device.store.state.blocklist, device.served) == ({}, [1, 2, 2])
    device.store.block(2, "it failed")
    assert "it failed" in device.refuses(Refusal.BLOCKLISTED)


def test_a_day_without_the_repository_costs_few_looks_and_changes_nothing(
    device: Device, releases: Releases, server: FileServer, policy: Callable[[int], Path]
) -> None:
    away = server.folder.rename(server.folder.with_name("away"))
    updater, passed_s, looks = ClocklessPoller(device.follower, 0.5), 0.0, 0
    while passed_s < 86400:
        passed_s, looks = passed_s + sum(updater.pauses_s(1)), looks + 1
    assert looks < 60
    assert device.follower.status.looks["failed"] == looks
    assert (device.store.state.current, device.served) == (1, [1])
    away.rename(server.folder)
    releases.release(policy=policy(2))
    mirror(releases.editor, server.folder)
    assert updater.pauses_s(1) == [device.section.every]
    assert device.served == [1, 2]


def test_an_expired_timestamp_is_refused_until_there_is_a_new_one(
    device: Device, releases: Releases, server: FileServer, policy: Callable[[int], Path]
) -> None:
    """A freeze: who holds the mirror back goes on showing the old timestamp."""
    releases.draft(policy=policy(2))
    releases.publish(days=-1)
    mirror(releases.editor, server.folder)
    assert "timestamp.json is expired" in device.refuses(Refusal.UNTRUSTED)
    releases.publish()
    mirror(releases.editor, server.folder)
    assert device.follower.look() == "installed"


def test_without_a_clock_the_sequence_alone_is_enforced_and_that_is_said(
    device: Device,
    releases: Releases,
    server: FileServer,
    policy: Callable[[int], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(release_source, "is_synchronised", lambda: False)
    section = device.section.model_copy(update={"clock": "auto"})
    blind = ReleaseSource(section, device.folder, device.store, device.choice, DeviceFloor(Policy()))
    releases.draft(policy=policy(2))
    releases.publish(days=-1)
    mirror(releases.editor, server.folder)
    follower = ReleaseFollower(device.store, section, device.activate, blind, device.choice, "")
    assert follower.look() == "installed"
    assert blind.notice == NO_CLOCK
    device.store.prove(2)
    device.choice.keep(FleetChoice(sequence=1))
    assert follower.look() == "refused"
    assert follower.status.refusal is Refusal.OLDER


def test_a_root_rotated_by_two_of_three_keys_is_followed_and_by_one_it_is_not(
    device: Device, releases: Releases, server: FileServer, policy: Callable[[int], Path]
) -> None:
    for index in (2, 0):  # one key after the other is replaced
        known = [key for key in releases.root_keys if key is not releases.root_keys[index]]
        releases.root_keys[index] = Signer(releases.folder / "keys", f"root-new-{index}")
        releases.begin(rotate=True, signed_by=known)
        releases.publish()
    releases.release(policy=policy(2))
    mirror(releases.editor, server.folder)
    assert device.follower.look() == "installed"  # by way of 2.root.json and 3.root.json
    stranger = Signer(releases.folder / "keys", "stranger")
    releases.root_keys[1] = stranger
    releases.begin(rotate=True, signed_by=[releases.root_keys[0], stranger])
    with pytest.raises(ConfigError, match="root has 1 of 2 signatures"):
        releases.publish()
    (server.folder / "metadata/4.root.json").write_bytes((releases.editor.draft / "root.json").read_bytes())
    assert "root was signed by 1/2 keys" in device.refuses(Refusal.UNTRUSTED)


def test_a_lost_online_key_signs_nothing_that_devices_take(
    device: Device, releases: Releases, server: FileServer, policy: Callable[[int], Path]
) -> None:
    lost = releases.online_key
    releases.online_key = Signer(releases.folder / "keys", "online-new")
    releases.begin(rotate=True)
    releases.draft(policy=policy(2))
    releases.publish()
    mirror(releases.editor, server.folder)
    assert device.follower.look() == "installed"
    releases.forge(server.folder, releases.targets_key, lost)
    assert "timestamp was signed by 0/1 keys" in device.refuses(Refusal.UNTRUSTED)


def test_a_stolen_online_key_cannot_bring_what_was_not_signed_offline(
    device: Device, releases: Releases, server: FileServer
) -> None:
    releases.forge(server.folder, Signer(releases.folder / "keys", "thief"), releases.online_key)
    assert "targets was signed by 0/1 keys" in device.refuses(Refusal.UNTRUSTED)


def test_going_back_and_mixing_are_refused(
    device: Device, releases: Releases, server: FileServer, policy: Callable[[int], Path]
) -> None:
    www = server.folder / "metadata"
    old = {path.name: path.read_bytes() for path in www.iterdir()}
    releases.release(policy=policy(2))
    mirror(releases.editor, server.folder)
    assert device.follower.look() == "installed"
    new = {path.name: path.read_bytes() for path in www.iterdir()}
    (www / "timestamp.json").write_bytes(old["timestamp.json"])
    assert "must be >= 2" in device.refuses(Refusal.UNTRUSTED)
    releases.release(policy=policy(3))
    mirror(releases.editor, server.folder)
    (www / "3.targets.json").write_bytes(new["2.targets.json"])  # targets of another snapshot
    assert device.refuses(Refusal.UNTRUSTED)
    (www / "3.snapshot.json").write_bytes(new["2.snapshot.json"])
    assert device.refuses(Refusal.UNTRUSTED)
    restore(releases, server)
    assert device.follower.look() == "installed"


def restore(releases: Releases, server: FileServer) -> None:
    """What the operator has, on the server again."""
    for path in releases.editor.metadata.iterdir():
        (server.folder / "metadata" / path.name).write_bytes(path.read_bytes())


@pytest.fixture
def payload(releases: Releases, server: FileServer, policy: Callable[[int], Path], device: Device) -> Path:
    """The policy of release 2, as it lies on the server; the device has release 1."""
    releases.release(policy=policy(2))
    mirror(releases.editor, server.folder)
    digest = hashlib.sha256(policy(2).read_bytes()).hexdigest()
    return server.folder / f"targets/payload/{digest}.{digest}"


def test_a_stick_that_is_unplugged_is_a_failure_and_no_refusal(
    device: Device, payload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object, path: str) -> Iterator[bytes]:
        raise FetchFailed(f"{path}: the stick was unplugged")

    with monkeypatch.context() as patch:
        patch.setattr(repository_transport.WebTransport, "read", fail)
        with pytest.raises(FetchFailed, match="unplugged"):
            device.follower.look()
    assert device.follower.look() == "installed"


def test_a_payload_that_was_swapped_or_cut_is_not_taken_and_comes_later(device: Device, payload: Path) -> None:
    data = payload.read_bytes()
    for wrong in (data[:-3], data[:-1] + b" ", b""):
        payload.write_bytes(wrong)
        with pytest.raises(FetchFailed, match="cannot be fetched"):
            device.follower.look()
        assert device.served == [1]
    payload.write_bytes(data)
    assert device.follower.look() == "installed"


def test_a_body_without_an_end_is_cut_at_the_signed_length(device: Device, server: FileServer, payload: Path) -> None:
    path = str(payload.relative_to(server.folder))
    server.answers[path] = lambda: (200, {}, payload.read_bytes() + bytes(50_000_000))
    with pytest.raises(FetchFailed, match=r"has more bytes than the|has 50"):
        device.follower.look()
    assert not list((device.store.downloads).rglob("*.tar"))
    server.answers["metadata/timestamp.json"] = lambda: (200, {}, bytes(50_000_000))
    assert "too large" in device.refuses(Refusal.UNTRUSTED)


@pytest.mark.parametrize("to", ["http://example.com/", "file:///etc/passwd"])
def test_a_redirect_leads_nowhere_that_is_not_safe(device: Device, server: FileServer, payload: Path, to: str) -> None:
    server.answers["metadata/timestamp.json"] = lambda: (302, {"Location": f"{to}timestamp.json"}, b"")
    with pytest.raises(FetchFailed, match="expected https"):
        device.follower.look()
    assert device.served == [1]


def test_a_slow_drip_is_given_up(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and the whole never would."""
    monkeypatch.setattr(repository_transport, "SLOW_AFTER_S", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
            while not stop.wait(0.02):
                try:
                    connection.sendall(b"{")
                except OSError:
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    place = repository_transport.WebTransport(f"http://127.0.0.1:{listener.getsockname()[1]}")
    with pytest.raises(FetchFailed, match="takes longer than"):
        b"".join(place.read("metadata/timestamp.json"))
    stop.set()
    thread.join()
    listener.close()


@pytest.fixture
def behind_a_bad_link(tmp_path: Path, releases: Releases, server: FileServer) -> Iterator[Device]:
    """One that has nothing yet, and whose link breaks after each third of the file of release 1."""
    long = tmp_path / "long.yaml"
    long.write_text("version: 1\n" + f"# {'x' * 98}\n" * 3000)
    releases.release(policy=long)
    mirror(releases.editor, server.folder)
    with Proxy(f"127.0.0.1:{server.port}") as link:
        link.call(lambda: setattr(link.down, "fault", Fault(bytes_per_s=5_000_000.0, after_bytes=100_000)))
        yield Device(tmp_path / "device", server.url("", link.port), releases.root)


class Beside:
    """What would run a shadow release."""

    release = 0

    def begin(self, release: int, edges: Mapping[str, EdgeModel], problem: str = "") -> None:
        """Keep its number."""
        self.release = release

    def end(self) -> None:
        """Forget it."""
        self.release = 0


def test_the_payload_of_a_shadow_release_over_a_link_that_breaks_is_taken_up(
    behind_a_bad_link: Device, server: FileServer
) -> None:
    device, beside = behind_a_bad_link, Beside()
    device.choice.keep(FleetChoice(sequence=0, shadow=1))
    parts = ReleaseSurroundings(NO_TRUST, DeviceFloor(Policy()), Policy(), {})
    follower = ShadowFollower(beside, device.source, device.store, parts, device.choice)
    for _ in range(20):
        follower.look()
    assert beside.release == 1
    statuses = [one.status for one in server.asked if "payload" in one.path]
    assert statuses == [200, *[206] * (len(statuses) - 1)]
    device.choice.keep(FleetChoice())
    follower.look()
    assert [*(device.store.folder.parent / SHADOW_NAME).iterdir()] == []


def test_a_shadow_release_begins_once_an_expired_timestamp_is_renewed(
    device: Device, releases: Releases, server: FileServer, policy: Callable[[int], Path]
) -> None:
    releases.draft({MODEL: Publisher(releases.folder).bundle(3)}, policy=policy(2))
    releases.publish(days=-1)
    mirror(releases.editor, server.folder)
    device.choice.keep(FleetChoice(sequence=1, shadow=2))
    beside, loaded = Beside(), edge_model()
    parts = ReleaseSurroundings(NO_TRUST, DeviceFloor(Policy()), Policy(), {MODEL: lambda *_, **__: loaded})
    follower = ShadowFollower(beside, device.source, device.store, parts, device.choice)
    follower.look()
    assert beside.release == 0
    releases.publish()
    mirror(releases.editor, server.folder)
    follower.look()
    assert beside.release == 2


def test_a_payload_over_a_link_that_breaks_is_taken_up(behind_a_bad_link: Device, server: FileServer) -> None:
    device = behind_a_bad_link
    updater = UpdatePoller([device.follower], retry_s=0.01, draw=lambda: 0.0)
    until(lambda: device.served == [1], "release 1")
    updater.close()
    parts = [one for one in server.asked if "payload" in one.path]
    assert [one.status for one in parts] == [200, *[206] * (len(parts) - 1)]
    assert len(parts) >= 3
    assert device.follower.status.looks["failed"] == len(parts) - 1


def test_a_bundle_may_stay_in_a_registry_that_the_device_s_floor_names(
    tmp_path: Path, releases: Releases, server: FileServer
) -> None:
    need_registry()
    archive = Publisher(tmp_path).bundle(3)
    (tmp_path / "registry").mkdir()
    with Registry(tmp_path / "registry") as registry:
        registry.push(archive, "shift:3")
        offer = open_source(f"oci://{registry.address}/shift:3").newest()
        assert offer is not None
        releases.release({"shift": f"oci://{registry.address}/shift@{offer.token}"})
        mirror(releases.editor, server.folder)
        assert not list(server.folder.glob("targets/payload/*"))
        device = Device(tmp_path / "device", server.url(""), releases.root)
        assert f"names {registry.address}, which is not among" in device.refuses(Refusal.LOOSENED)
        with pytest.raises(BundleRefused, match="which is not among"):
            device.source.bring(1, tmp_path / "beside")
        floor = DeviceFloor(Policy(), (registry.address,))
        allowed = Device(tmp_path / "allowed", server.url(""), releases.root, floor)
        assert allowed.follower.look() == "installed"
        assert allowed.served == [1]


def test_a_refused_release_is_tried_again_once_the_device_s_own_settings_have_changed(
    tmp_path: Path, releases: Releases, policy: Callable[[int], Path]
) -> None:
    releases.release(policy=policy(1))
    section = ReleaseSection(source=str(releases.place), root=releases.root, clock="trusted")
    keeps = Policy.model_validate({"version": 1, "rules": [{"name": "ward", "match": {}, "egress": "deny"}]})

    def outcome(local: Policy, configured: str, trust: Trust = NO_TRUST) -> str:
        start = ReleaseStart(section, tmp_path / "state", trust, local, has_factory=True, configured=configured)
        return start.follower.look()

    assert [outcome(keeps, "agent.yaml") for _ in range(2)] == ["refused", "nothing_new"]
    assert [outcome(keeps, "another one") for _ in range(2)] == ["refused", "nothing_new"]
    trust = Trust((Signer(tmp_path, "new").public,))
    assert [outcome(keeps, "another one", trust) for _ in range(2)] == ["refused", "nothing_new"]
    assert [outcome(Policy(), "another one") for _ in range(2)] == ["installed", "nothing_new"]


def test_what_a_release_may_not_loosen() -> None:
    keeps = Policy.model_validate(
        {"version": 1, "rules": [{"name": "ward", "match": {"tags": {"room": "ward"}}, "egress": "deny"}]}
    )
    floor = DeviceFloor(keeps, endpoints=("registry.site:5000",))
    with pytest.raises(BundleRefused, match="drops 'ward', which keep data on this device") as caught:
        floor.check_policy(7, Policy())
    assert caught.value.refusal is Refusal.LOOSENED
    floor.check_policy(7, keeps)
    floor.check_endpoint(7, "registry.site:5000")
    for address in ("registry.site", "registry.site:5001", "evil.example:5000"):
        with pytest.raises(BundleRefused, match=r"not among `floor\.endpoints`"):
            floor.check_endpoint(7, address)


@pytest.mark.parametrize("more", [{"listen": ["0.0.0.0:1"]}, {"agent": {}}, {"cloud_endpoint": "evil.example:1"}])
def test_a_release_that_names_anything_else_is_refused(more: Mapping[str, object]) -> None:
    """No release has a word in where the agent listens or which cloud it asks."""
    text = json.dumps({"format": 1, "name": "fleet", "sequence": 3, **more})
    with pytest.raises(BundleRefused, match="Extra inputs are not permitted"):
        parse_document(text.encode(), 3)
