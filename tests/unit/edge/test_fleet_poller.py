"""When the next poll is due, and what the device keeps of itself."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.fleet_service import service
from upwell.edge.fleet import device_identity, fleet_poller
from upwell.edge.fleet.device_facts import AgentView, DemandView, ReleaseCounts
from upwell.edge.fleet.device_identity import FleetIdentity
from upwell.edge.fleet.fleet_config import FleetSection
from upwell.edge.fleet.fleet_poller import LONGEST_PAUSE_S, FleetPoller, pause_s
from upwell.edge.fleet.fleet_protocol import Conversation, KeptShares
from upwell.edge.fleet.opamp_messages import ServiceMessage
from upwell.fleet.config import AuthoritySection
from upwell.fleet.enrolment.certificate_authority import open_authority, read_request
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.oip.http.client.exchange import Received
from upwell.shared.opamp import Wish, digest_of
from upwell.shared.platform.system_clock import uptime_s


@pytest.mark.parametrize("draw", [0.0, 0.5, 0.999])
def test_polls_are_spread_and_a_week_without_a_service_costs_few(draw: float) -> None:
    assert 0.9 * 60 <= pause_s(60.0, 0, None, draw) <= 1.1 * 60
    a_week = [pause_s(60.0, failures, None, draw) for failures in range(1, 2000)]
    assert max(a_week) <= LONGEST_PAUSE_S
    assert sum(a_week) > 7 * 86400  # so a week has fewer polls than these


def test_what_the_service_asks_for_is_heeded_up_to_an_hour() -> None:
    assert pause_s(60.0, 1, 300.0, 0.5) >= 300
    assert pause_s(60.0, 1, 1e9, 0.5) <= 1.1 * 3600


def test_key_and_uid_are_made_once_and_for_this_device_alone(tmp_path: Path) -> None:
    first = FleetIdentity(tmp_path / "fleet")
    again = FleetIdentity(tmp_path / "fleet")
    assert again.instance_uid == first.instance_uid
    assert (first.instance_uid[6] >> 4, first.instance_uid[8] >> 6) == (7, 2)
    assert again.request() != b""
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "fleet").iterdir()} == {0o600}


def test_a_key_that_was_damaged_is_set_aside_for_a_new_one(tmp_path: Path) -> None:
    FleetIdentity(tmp_path)
    (tmp_path / "key.pem").write_text("torn")
    (tmp_path / "instance_uid").write_text("torn")
    found = FleetIdentity(tmp_path)
    assert (tmp_path / "key.unreadable").read_text() == "torn"
    assert len(found.instance_uid) == 16
    assert not found.is_enrolled


def test_a_certificate_for_another_key_is_refused(tmp_path: Path) -> None:
    found = FleetIdentity(tmp_path)
    assert "not for this device's key" in found.take(b"no certificate")
    assert not found.is_enrolled
    assert found.wants_certificate(0.0)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_device_whose_clock_is_years_ahead_does_not_renew_its_certificate_with_each_poll(
    tmp_path: Path, is_stored: bool
) -> None:
    files = AuthoritySection.model_validate({"cert": tmp_path / "ca.pem", "key": tmp_path / "ca.key"})
    now, found = time.time(), FleetIdentity(tmp_path / "fleet")
    issued = open_authority(files, now).sign_device(read_request(found.request()), "d", now, 86400.0)
    assert found.take(issued.pem) == ""
    years_ahead = now + 10 * 365 * 86400.0
    assert (found.wants_certificate(years_ahead), found.has_expired(years_ahead)) == (False, True)
    again = FleetIdentity(tmp_path / "fleet")
    assert (again.wants_certificate(now), again.wants_certificate(years_ahead)) == (False, True)
    if not is_stored:
        (tmp_path / "fleet/cert.pem").unlink()
        (tmp_path / "fleet/cert.pem").mkdir()
    with contextlib.nullcontext() if is_stored else pytest.raises(OSError, match="director"):
        again.take(issued.pem)
    assert not again.wants_certificate(years_ahead)


def test_a_device_that_sleeps_most_of_the_time_renews_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = AuthoritySection.model_validate({"cert": tmp_path / "ca.pem", "key": tmp_path / "ca.key"})
    now, found, day_s = time.time(), FleetIdentity(tmp_path / "fleet"), 86400.0
    assert uptime_s() >= time.monotonic() - 1.0
    monkeypatch.setattr(device_identity, "uptime_s", lambda: 1000.0)
    found.take(open_authority(files, now).sign_device(read_request(found.request()), "d", now, 90 * day_s).pem)
    assert not found.wants_certificate(now + 61 * day_s)
    monkeypatch.setattr(device_identity, "uptime_s", lambda: 1000.0 + 61 * day_s)
    assert found.wants_certificate(now + 61 * day_s)


def test_a_refused_certificate_is_kept_and_gives_way_to_the_token_every_other_time(tmp_path: Path) -> None:
    files = AuthoritySection.model_validate({"cert": tmp_path / "ca.pem", "key": tmp_path / "ca.key"})
    now, identity = time.time(), FleetIdentity(tmp_path / "fleet")
    identity.take(open_authority(files, now).sign_device(read_request(identity.request()), "d", now, 86400.0).pem)
    section = _section("https://127.0.0.1:1", None, tmp_path, "upwe_used")
    poller, refused = FleetPoller(section, _view(), tmp_path / "fleet"), Received(401, 0, "", b"")
    poller.close()

    def shown(has_shown_token: bool) -> list[bool]:
        found = []
        for _ in range(8):
            poller._refusal(refused, has_shown_token=has_shown_token)
            found.append(poller._shows_token())
        return found

    assert not any(shown(has_shown_token=True)), "a refused token says nothing about the certificate"
    assert sorted(shown(has_shown_token=False)[4:]) == [False, False, True, True]
    assert (tmp_path / "fleet/cert.pem").exists()


@pytest.mark.parametrize("has_same_authority", [True, False])
def test_a_device_comes_back_to_a_service_that_has_lost_its_state_with_a_new_token_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_same_authority: bool
) -> None:
    monkeypatch.setattr(fleet_poller, "pause_s", lambda *_: 0.1)
    folder = tmp_path / "device"
    with (
        service(tmp_path / "former") as fleet,
        _polling(_section(fleet.url, fleet.ca, tmp_path, fleet.enrolment_token()), folder) as poller,
    ):
        _until(lambda: poller.caller() is not None)
    certificate = (folder / "cert.pem").read_bytes()
    (tmp_path / "anew").mkdir()
    if has_same_authority:
        for name in ("ca.pem", "ca.key"):
            shutil.copy(tmp_path / "former" / name, tmp_path / "anew")
    with service(tmp_path / "anew") as fleet:
        with _polling(_section(fleet.url, fleet.ca, tmp_path, "upwe_used"), folder) as poller:
            _until(lambda: poller.describe().facts["failures_in_a_row"] >= 8)
            assert (folder / "cert.pem").read_bytes() == certificate, "the service may find its database again"
            (tmp_path / "token").write_text(fleet.enrolment_token())
            _until(lambda: poller.caller() is not None)
        assert len(fleet.get("/devices")["devices"]) == 1


def _section(endpoint: str, ca: Path | None, folder: Path, token: str) -> FleetSection:
    (folder / "token").write_text(token)
    keys = {"endpoint": endpoint, "ca": ca, "enrol_token_file": folder / "token", "every": "1s"}
    return FleetSection.model_validate(keys)


@contextlib.contextmanager
def _polling(section: FleetSection, folder: Path) -> Iterator[FleetPoller]:
    poller = FleetPoller(section, _view(), folder)
    try:
        yield poller
    finally:
        poller.close()


def _until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def _view() -> AgentView:
    return AgentView(
        "a", {}, lambda: {"models": {}}, dict, dict, dict, lambda _: [], dict,
        DemandView(dict, lambda _: [], dict, lambda _: None),
    )  # fmt: skip


def test_a_new_process_says_that_it_has_no_wish_and_then_what_became_of_it(tmp_path: Path) -> None:
    for _ in range(2):
        shares = KeptShares(tmp_path, 86400.0, lambda _: None)
        conversation = Conversation(_view(), FleetIdentity(tmp_path), shares, 1)
        first = conversation.say(1.0)
        status = opamp_pb2.AgentToServer.FromString(first.data).remote_config_status
        assert (status.last_remote_config_hash, status.status) == (b"", opamp_pb2.RemoteConfigStatuses_UNSET)
        wish = Wish(statistics_s=60.0).encode()
        conversation.hear(ServiceMessage(wish=wish, wish_hash=digest_of(wish)), first, 1.0)
        second = conversation.say(2.0)
        status = opamp_pb2.AgentToServer.FromString(second.data).remote_config_status
        assert (status.last_remote_config_hash, status.status) == (
            digest_of(wish), opamp_pb2.RemoteConfigStatuses_APPLIED
        )  # fmt: skip
        conversation.hear(ServiceMessage(), second, 2.0)
        assert not opamp_pb2.AgentToServer.FromString(conversation.say(3.0).data).HasField("remote_config_status")


def test_what_a_disk_refuses_to_store_takes_effect_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(certificate: bytes) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said: list[Mapping[str, float]] = []
    identity = FleetIdentity(tmp_path / "identity")
    monkeypatch.setattr(identity, "take", refuse)
    conversation = Conversation(_view(), identity, KeptShares(tmp_path / "gone", 86400.0, said.append), 1)
    wish = Wish(shares={"digits": 0.25}).encode()
    for second in range(3):
        told = ServiceMessage(wish=wish, wish_hash=digest_of(wish), certificate=b"new")
        outgoing = conversation.say(second)
        conversation.hear(told, outgoing, second * 1000.0)
        if second == 1:
            status = opamp_pb2.AgentToServer.FromString(outgoing.data).remote_config_status
            assert status.status == opamp_pb2.RemoteConfigStatuses_APPLIED
    assert said == [{"digits": 0.25}]
    for words in ("the shares cannot be saved", "its certificate cannot be stored: No space left on device"):
        assert caplog.text.count(words) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a read-only disk")
def test_an_identity_on_a_read_only_disk_is_used(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("this root may not mount anything")
    try:
        uid = FleetIdentity(tmp_path).instance_uid
        subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
        assert FleetIdentity(tmp_path).instance_uid == uid
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_counts_begin_anew_with_each_release() -> None:
    counts = ReleaseCounts(since_unix_s=1.0)
    assert counts.update(None, {"requests": 5}, 2.0) == {"requests": 5}
    assert counts.update(3, {"requests": 7, "late": 2, "uplink_bytes": 50}, 3.0) == {
        "requests": 0, "late": 0, "uplink_bytes": 50,
    }  # fmt: skip
    assert (counts.release, counts.since_unix_s) == (3, 3.0)
    assert counts.update(3, {"requests": 9, "late": 2, "uplink_bytes": 60}, 4.0) == {
        "requests": 2, "late": 0, "uplink_bytes": 60,
    }  # fmt: skip
    assert ReleaseCounts().update(3, {"requests": 7}, 3.0) == {"requests": 7}  # all of them since the start
