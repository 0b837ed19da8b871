"""Keeping bundles up to date: what is installed, what is refused and remembered, and a thread that ends when told."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clockless import ClocklessPoller
from tests.faults.bundle_servers import FileServer
from tests.faults.bundles_for_tests import Signer, bundle_archive, bundle_folder
from tests.integration.spool.harness import until
from upwell.edge.bundle.bundle import Bundle, BundleRefused, Refusal, Trust
from upwell.edge.bundle.open_bundle import open_bundle
from upwell.edge.models.model_config import UpdatesSection
from upwell.edge.updates.sources.base import FetchFailed
from upwell.edge.updates.sources.source_opening import open_source
from upwell.edge.updates.update_follower import UpdateFollower, UpdatePoller
from upwell.edge.updates.version_store import VersionStore
from upwell.shared.errors import ConfigError, ModelFailed

NAME = "digits.bundle.tar"


class Device:
    """A store, a folder that it follows, and what was activated."""

    def __init__(self, folder: Path, trust: Trust | None = None) -> None:
        self.folder = folder
        self.offered = folder / "offered"
        self.offered.mkdir(exist_ok=True)
        self.trust = trust or Trust()
        self.activated: list[int] = []
        self.served: list[int] = []
        self.trouble: Exception | None = None
        self.restart()

    def restart(self, source: str = "", every_s: float = 3600.0, factory: Bundle | None = None) -> None:
        """As a new process would have it."""
        self.store = VersionStore(self.folder / "state", "digits", self.trust, factory)
        source = source or str(self.offered)
        updates = UpdatesSection.model_construct(source=source, every=every_s)
        self.follower = UpdateFollower(self.store, updates, self.activate, open_source(source))

    def offer(self, version: int, *, signer: Signer | None = None, size: int = 2000) -> None:
        for path in self.offered.glob("*.bundle.tar"):
            path.unlink()
        bundle_archive(self.offered / f"v{version}.bundle.tar", version, size=size, signer=signer)

    def activate(self, bundle: Bundle) -> Callable[[], None]:
        self.activated.append(bundle.version)
        if self.trouble is not None:
            raise self.trouble
        return lambda: self.served.append(self.store.state.current)

    @property
    def serves(self) -> int:
        bundle = self.store.open()
        return bundle.version if bundle else 0


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_a_new_version_is_installed_once(device: Device) -> None:
    assert device.follower.look() == "nothing_new"
    device.offer(1)
    assert [device.follower.look() for _ in range(3)] == ["installed", "nothing_new", "nothing_new"]
    device.restart()
    assert device.follower.look() == "nothing_new"
    device.offer(2)
    assert device.follower.look() == "installed"
    assert device.activated == device.served == [1, 2]  # each was current on the disk before it was served
    assert device.serves == 2
    status = device.follower.status
    assert (status.installed, status.refusal, status.message, status.failure) == (2, None, "", "")
    assert status.looks == {"nothing_new": 1, "installed": 1}
    assert status.looked_unix_s > 0
    assert status.fetched_bytes == next(device.offered.glob("*.bundle.tar")).stat().st_size


def test_a_bundle_that_fails_its_self_test_is_not_tried_again(device: Device) -> None:
    device.offer(1)
    device.follower.look()
    device.offer(2)
    device.trouble = BundleRefused(Refusal.FAILED_SELF_TEST, None, "2 of 10 golden vectors differ")
    assert device.follower.look() == "refused"
    device.trouble = None
    for _ in range(2):
        status = device.follower.status
        assert status.refusal is Refusal.FAILED_SELF_TEST
        assert "2 of 10" in status.message
        assert device.follower.look() == "nothing_new"
        device.restart()
    assert device.activated == [1, 2]
    assert device.serves == 1
    assert sorted(path.name for path in device.store.folder.iterdir()) == ["1", "floor.json", "state.json"]
    device.offer(3)
    assert device.follower.look() == "installed"
    assert device.follower.status.refusal is None


def test_a_refusal_that_quotes_megabytes_is_remembered(device: Device) -> None:
    device.offer(1)
    device.trouble = BundleRefused(Refusal.FAILED_SELF_TEST, None, "x" * (2 << 20))
    assert device.follower.look() == "refused"
    device.restart()
    assert device.follower.look() == "nothing_new"
    assert device.follower.status.refusal is Refusal.FAILED_SELF_TEST


def test_trouble_that_is_not_the_bundles_fault_is_tried_again_without_fetching(device: Device) -> None:
    device.offer(1)
    device.trouble = ModelFailed("out of memory")
    with pytest.raises(ModelFailed):
        device.follower.look()
    fetched_bytes = device.follower.fetched_bytes
    assert device.follower.status.failure == "internal error"
    device.trouble = None
    assert device.follower.look() == "installed"
    assert device.follower.fetched_bytes == fetched_bytes > 0


DYING = """
import os, sys
from pathlib import Path
from upwell.edge.bundle.bundle import Trust
from upwell.edge.updates.update_follower import UpdateFollower
from upwell.edge.updates.sources.source_opening import open_source
from upwell.edge.models.model_config import UpdatesSection
from upwell.edge.updates.version_store import VersionStore

for _ in range(5):
    child = os.fork()
    if child:
        print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    store = VersionStore(Path(sys.argv[1]), "digits", Trust())
    follower = UpdateFollower(
        store, UpdatesSection(source=sys.argv[2]), lambda bundle: os._exit(11), open_source(sys.argv[2])
    )
    print(follower.look(), follower.status.message, flush=True)
    os._exit(0)
"""


def test_a_bundle_that_kills_the_agent_is_given_up(device: Device) -> None:
    device.offer(1)
    device.follower.look()
    device.offer(2)
    arguments = [sys.executable, "-c", DYING, str(device.folder / "state"), str(device.offered)]
    done = subprocess.run(arguments, timeout=60, capture_output=True, text=True, check=True)
    reason = f"{device.offered}: the agent exited 3 times while trying it"
    assert done.stdout.splitlines() == [
        *["ended with 11"] * 3, f"refused {reason}", "ended with 0", f"nothing_new {reason}", "ended with 0",
    ]  # fmt: skip
    device.restart()
    assert device.serves == 1
    assert device.follower.status.refusal is Refusal.FAILED_SELF_TEST
    device.offer(3)
    assert device.follower.look() == "installed"


def test_other_keys_are_a_reason_to_look_again(tmp_path: Path) -> None:
    signer, stranger = Signer(tmp_path), Signer(tmp_path, "stranger")
    device = Device(tmp_path, stranger.trust)
    device.offer(1, signer=signer)
    assert device.follower.look() == "refused"
    assert device.follower.status.refusal is Refusal.WRONG_SIGNATURE
    device.trust = Trust((stranger.public, signer.public), require=True)
    device.restart()
    assert device.follower.look() == "installed"
    signer.public.unlink()
    device.restart()
    device.offer(2, signer=signer)
    with pytest.raises(FetchFailed, match="cannot read the key"):
        device.follower.look()


def test_what_is_installed_is_not_fetched_again_under_other_circumstances(tmp_path: Path) -> None:
    signer, new = Signer(tmp_path), Signer(tmp_path, "new")
    device = Device(tmp_path, signer.trust)
    device.offer(1, signer=signer)
    device.follower.look()
    device.trust = Trust((signer.public, new.public), require=True)
    device.restart()
    assert device.follower.look() == "nothing_new"
    assert device.follower.fetched_bytes == 0
    assert device.follower.status.refusal is None


def test_what_the_device_came_with_is_no_refusal(device: Device) -> None:
    device.offer(3)
    factory = open_bundle(bundle_folder(device.folder / "factory", 3))
    device.restart(factory=factory)
    assert [device.follower.look() for _ in range(2)] == ["nothing_new", "nothing_new"]
    assert device.activated == []
    assert (device.follower.status.installed, device.follower.status.refusal) == (0, None)
    fetched_bytes = device.follower.fetched_bytes
    device.restart(factory=factory)
    assert device.follower.look() == "nothing_new"
    assert device.follower.fetched_bytes == 0 < fetched_bytes


def test_a_source_without_a_bundle_is_said_once(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert device.follower.look() == "nothing_new"
    expected = f"there is no bundle at {device.offered}"
    assert device.follower.status.failure == expected
    assert caplog.text.count(expected) == 1
    device.offer(1)
    device.follower.look()
    assert device.follower.status.failure == ""


def test_a_refusal_names_the_source_and_no_secret_of_it(
    device: Device, server: FileServer, caplog: pytest.LogCaptureFixture
) -> None:
    (server.folder / NAME).write_bytes(b"captive portal")
    device.restart(server.url(f"{NAME}?signature=s3cret"))
    server.answers[f"{NAME}?signature=s3cret"] = lambda: (200, {"ETag": '"a"'}, b"captive portal")
    assert device.follower.look() == "refused"
    assert device.follower.status.message.startswith(f"{server.url(NAME)}: ends after 14 bytes")
    assert "s3cret" not in caplog.text + device.follower.status.message


def test_a_disk_that_is_full_when_a_version_is_to_be_served_leaves_the_one_before(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.offer(1)
    device.follower.look()
    device.offer(2)
    activate = device.activate

    def fill(bundle: Bundle) -> Callable[[], None]:
        monkeypatch.setattr("upwell.edge.updates.version_state.write_whole", full)
        return activate(bundle)

    device.follower._activate = fill
    with pytest.raises(FetchFailed, match="No space left"):
        device.follower.look()
    assert (device.served, device.serves) == ([1], 1)
    monkeypatch.undo()
    device.follower._activate = activate
    assert device.follower.look() == "installed"
    assert (device.served, device.serves) == ([1, 2], 2)


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_version_that_is_rolled_back_stays_away(device: Device) -> None:
    device.offer(1)
    device.follower.look()
    device.offer(2)
    device.follower.look()
    device.store.block(2, "30% of the requests failed")
    assert device.serves == 1
    status = device.follower.status
    assert (status.installed, status.refusal) == (1, Refusal.BLOCKLISTED)
    assert "30%" in status.message
    device.restart()
    assert device.follower.look() == "nothing_new"
    device.offer(2, size=3000)
    assert device.follower.look() == "refused"
    assert device.follower.status.refusal is Refusal.BLOCKLISTED
    device.offer(3)
    assert device.follower.look() == "installed"


def test_a_source_that_cannot_be_one_is_said_at_the_start(device: Device) -> None:
    with pytest.raises(ConfigError, match="expected https://"):
        device.restart("http://models.example.com/digits.bundle.tar")


def test_the_thread_installs_what_comes_and_goes_on_after_trouble(device: Device) -> None:
    installed: queue.Queue[int] = queue.Queue()
    activate = device.activate

    def noted(bundle: Bundle) -> Callable[[], None]:
        installed.put(bundle.version)
        return activate(bundle)

    device.restart(every_s=0.02)
    device.follower._activate = noted
    device.offer(1)
    updater = UpdatePoller([device.follower], retry_s=0.01)
    assert installed.get(timeout=30) == 1
    device.trouble = ModelFailed("out of memory")
    device.offer(2)
    assert [installed.get(timeout=30) for _ in range(2)] == [2, 2]
    device.trouble = None
    until(lambda: device.follower.status.installed == 2, "version 2 current")
    device.offered.rename(device.folder / "away")
    until(lambda: device.follower.status.looks.get("failed", 0) > 3, "failures")
    assert "No such file" in device.follower.status.failure
    (device.folder / "away").rename(device.offered)
    device.offer(3)
    until(lambda: device.follower.status.installed == 3, "version 3 current")
    updater.close()
    updater.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "www").mkdir()
    with FileServer(tmp_path / "www") as server:
        yield server


def test_closing_does_not_wait_for_a_download(device: Device, server: FileServer) -> None:
    bundle_archive(server.folder / NAME, 1, size=500_000)
    server.stall_after = 100_000
    device.restart(server.url(NAME))
    updater = UpdatePoller([device.follower], draw=lambda: 0.0)
    assert server.stalled.wait(30)
    until(lambda: device.follower.fetched_bytes == 100_000, "what was sent")
    updater.close()
    assert not updater._thread.is_alive()
    server.release.set()
    server.stall_after = None
    device.restart(server.url(NAME))
    assert device.follower.look() == "installed"
    assert [one.start for one in server.asked if one.method == "GET"] == [0, 100_000]
    device.follower.close()


def test_nothing_is_installed_once_it_is_closed(device: Device) -> None:
    device.offer(1)
    began, go_on = threading.Event(), threading.Event()

    def slow(bundle: Bundle) -> Callable[[], None]:
        began.set()
        go_on.wait(30)
        return device.activate(bundle)

    device.follower._activate = slow
    updater = UpdatePoller([device.follower], draw=lambda: 0.0)
    assert began.wait(30)
    device.follower.close()
    go_on.set()
    updater.close()
    assert device.serves == 0


@pytest.mark.parametrize(("draw", "share"), [(0.0, 0.5), (1.0, 1.0)])
def test_pauses_grow_with_failures_up_to_the_usual_one(device: Device, draw: float, share: float) -> None:
    device.restart(str(device.folder / "none"), every_s=60.0)
    expected = [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert ClocklessPoller(device.follower, draw).pauses_s(6) == [share * pause_s for pause_s in expected]


@pytest.mark.parametrize(("draw", "share"), [(0.0, 0.9), (0.5, 1.0), (1.0, 1.1)])
def test_looks_are_spread_by_a_tenth(device: Device, draw: float, share: float) -> None:
    assert ClocklessPoller(device.follower, draw).pauses_s(2) == pytest.approx([share * 3600.0] * 2)


def test_the_first_look_is_spread(device: Device) -> None:
    device.offer(1)
    device.follower.look()
    before_s = time.monotonic()
    updater = UpdatePoller([device.follower], draw=lambda: 0.5)
    assert 150.0 <= updater._due_s["digits"] - before_s <= 150.0 + time.monotonic() - before_s
    updater.close()


def test_where_there_is_nothing_to_serve_yet_the_first_look_is_at_once(device: Device) -> None:
    device.offer(1)
    updater = UpdatePoller([device.follower], draw=lambda: 0.99)
    until(lambda: device.served == [1], "version 1 served")
    updater.close()


def test_a_source_that_asks_for_a_pause_gets_it_and_more(device: Device, server: FileServer) -> None:
    server.answers[NAME] = lambda: (429, {"Retry-After": "7200"}, b"")
    device.restart(server.url(NAME))
    assert ClocklessPoller(device.follower, 0.0).pauses_s(1) == [7200.0]
    device.restart(server.url(NAME))
    assert ClocklessPoller(device.follower, 1.0).pauses_s(1) == [10800.0]


def test_a_download_that_comes_on_is_not_held_back(device: Device, server: FileServer) -> None:
    bundle_archive(server.folder / NAME, 1, size=50_000)
    server.stall_after = 10_000
    server.release.set()
    device.restart(server.url(NAME))
    updater = ClocklessPoller(device.follower, 1.0)
    assert updater.pauses_s(4) == [5.0] * 4
    server.stall_after = None
    assert updater.pauses_s(1) == pytest.approx([3960.0])
    assert device.serves == 1


def test_nothing_is_tried_once_it_is_closed(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.offer(1)
    install = device.store.install

    def closing(fetched: Path) -> Bundle:
        device.follower.close()
        return install(fetched)

    monkeypatch.setattr(device.store, "install", closing)
    with pytest.raises(FetchFailed, match="stopped"):
        device.follower.look()
    assert device.activated == []
