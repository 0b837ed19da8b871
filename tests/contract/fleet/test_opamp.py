"""The OpAMP side of the fleet service over real HTTP: who is let in, what is kept, what is said back."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from cryptography import x509
from sqlalchemy import event, select

from tests.fleet_service import CAPABILITIES, FakeDevice, Service, service
from upwell.fleet.enrolment.certificate_authority import serial_of
from upwell.fleet.opamp.opamp_messages import ConnectionSettings, read, write
from upwell.fleet.opamp.poll_handler import Instant, Peer, PollHandler
from upwell.fleet.storage.tables import CERTIFICATES, DEVICES
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.errors import UpwellError
from upwell.shared.opamp import DRIFT, EXPLAIN, RELEASE_PACKAGE, STATISTICS, WISH_FILE

FULL_STATE = opamp_pb2.ServerToAgentFlags_ReportFullState


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("fleet")) as running:
        yield running


def test_a_device_enrols_with_a_token_and_is_known_by_its_certificate(fleet: Service) -> None:
    device = fleet.enrolled("gate", site="hamburg")
    assert device.heard.connection_settings.opamp.heartbeat_interval_seconds == 60
    assert not device.heard.connection_settings.opamp.certificate.private_key
    device.poll(health=opamp_pb2.ComponentHealth(healthy=False, last_error="no camera", start_time_unix_nano=5))
    shown = fleet.get("/devices/gate")
    assert (shown["labels"], shown["healthy"], shown["problem"]) == ({"site": "hamburg"}, False, "no camera")
    assert shown["instance_uid"] == device.uid.hex()


def test_a_token_enrols_one_key_and_that_key_again_where_the_answer_was_lost(fleet: Service) -> None:
    token = fleet.enrolment_token()
    first, other = FakeDevice(fleet, "first"), FakeDevice(fleet, "other")
    assert first.enrol(token).status == HTTPStatus.OK
    assert first.enrol(token).status == HTTPStatus.OK
    refused = other.enrol(token)
    assert refused.status == HTTPStatus.UNAUTHORIZED
    assert "used by another device" in other.heard.error_response.error_message
    assert sum(one["name"] == "first" for one in fleet.get("/devices")["devices"]) == 1


def test_the_answer_to_an_enrolment_knows_the_groups_of_the_labels_in_it(fleet: Service) -> None:
    """Else the device would hear first that it is to take the newest release."""
    fleet.do("PUT", "/groups/fresh", {"expression": 'labels.line == "fresh"'})
    fleet.do("PUT", "/groups/fresh/release", {"release": 4})
    fleet.fleet.state.assignments._read_at_s = float("-inf")  # as two seconds later
    device = FakeDevice(fleet, "fresh")
    message = device.message(agent_description=device.description(**{"upwell.label.line": "fresh"}))
    message.connection_settings_request.opamp.certificate_request.csr = device.csr()
    headers = {"Content-Type": "application/x-protobuf", "Authorization": f"Bearer {fleet.enrolment_token()}"}
    heard = device.hear(fleet.send("POST", "/v1/opamp", message.SerializeToString(), headers))
    fleet.do("DELETE", "/groups/fresh")
    assert json.loads(heard.remote_config.config.config_map[WISH_FILE].body)["release"] == 4


def test_nobody_polls_without_a_certificate_or_with_a_revoked_one(fleet: Service) -> None:
    device = fleet.enrolled("lost")
    message = device.message().SerializeToString()
    headers = {"Content-Type": "application/x-protobuf"}
    assert fleet.send("POST", "/v1/opamp", message, headers).status == HTTPStatus.UNAUTHORIZED
    assert fleet.send("POST", "/v1/opamp", message, {**headers, "Authorization": "Bearer upwe_x"}).status == 401
    device.poll()
    fleet.do("POST", "/devices/lost/revoke")
    assert device.send(device.message().SerializeToString()).status == HTTPStatus.UNAUTHORIZED
    assert device.enrol(fleet.enrolment_token()).status == HTTPStatus.FORBIDDEN


def test_a_revoked_device_leaves_its_name_to_the_one_that_replaces_it(fleet: Service) -> None:
    old = fleet.enrolled("gate-9")
    fleet.do("POST", "/devices/gate-9/revoke")
    assert fleet.get("/devices/gate-9")["revoked_unix_s"] is not None
    new = fleet.enrolled("gate-9")
    assert fleet.get("/devices/gate-9")["revoked_unix_s"] is None
    assert old.send(old.message().SerializeToString()).status == HTTPStatus.UNAUTHORIZED
    new.poll()


def test_a_certificate_is_renewed_for_the_same_key_alone(fleet: Service) -> None:
    device, other = fleet.enrolled("renewing"), FakeDevice(fleet, "thief")
    before = device.files.cert.read_bytes() if device.files.cert else b""
    message = device.message()
    message.connection_settings_request.opamp.certificate_request.csr = device.csr()
    device.hear(device.send(message.SerializeToString()))
    assert device.files.cert is not None
    assert device.files.cert.read_bytes() != before
    device.poll()
    message.connection_settings_request.opamp.certificate_request.csr = other.csr()
    assert device.send(message.SerializeToString()).status == HTTPStatus.FORBIDDEN


def test_an_hour_with_the_clock_ahead_locks_no_device_out(fleet: Service) -> None:
    device = fleet.enrolled("ahead")
    message = device.message()
    message.connection_settings_request.opamp.certificate_request.csr = device.csr()
    device.hear(device.send(message.SerializeToString()))
    fleet.server._upkeep._prune(time.time() + 10 * 365 * 86400.0)
    device.poll()
    with fleet.fleet.state.database.reading() as connection:
        kept = select(CERTIFICATES.c.serial).join(DEVICES, DEVICES.c.id == CERTIFICATES.c.device_id)
        (serial,) = connection.scalars(kept.where(DEVICES.c.name == "ahead"))  # the one before was replaced
    assert device.files.cert is not None
    assert serial == serial_of(x509.load_pem_x509_certificate(device.files.cert.read_bytes()))


def test_a_release_is_wished_once_and_again_when_it_changes(fleet: Service) -> None:
    device = fleet.enrolled("wisher")
    wish = device.poll().remote_config
    assert json.loads(wish.config.config_map[WISH_FILE].body)["release"] is None
    applied = opamp_pb2.RemoteConfigStatus(
        last_remote_config_hash=wish.config_hash, status=opamp_pb2.RemoteConfigStatuses_APPLIED
    )
    assert not device.poll(remote_config_status=applied).HasField("remote_config")
    assert not device.poll().HasField("remote_config")
    anew = opamp_pb2.RemoteConfigStatus(status=opamp_pb2.RemoteConfigStatuses_UNSET)  # a restarted process
    assert device.poll(remote_config_status=anew).remote_config.config_hash == wish.config_hash
    assert not device.poll(remote_config_status=applied).HasField("remote_config")
    fleet.do("PUT", "/devices/wisher/release", {"release": 7, "not_before_unix_s": 12.5})
    wished = json.loads(device.poll().remote_config.config.config_map[WISH_FILE].body)
    assert (wished["release"], wished["not_before_unix_s"]) == (7, 12.5)
    assert not device.poll(capabilities=opamp_pb2.AgentCapabilities_ReportsStatus).HasField("remote_config")
    failed = opamp_pb2.RemoteConfigStatus(
        last_remote_config_hash=device.heard.remote_config.config_hash,
        status=opamp_pb2.RemoteConfigStatuses_FAILED, error_message="release 7 is not signed",
    )  # fmt: skip
    device.poll(remote_config_status=failed)
    assert "release 7 is not signed" in fleet.get("/devices/wisher")["problem"]


def test_groups_decide_for_devices_without_a_release_of_their_own(fleet: Service) -> None:
    device = fleet.enrolled("member", site="kiel")
    fleet.do("PUT", "/groups/kiel", {"expression": 'labels.site == "kiel"'})
    fleet.do("PUT", "/groups/kiel/release", {"release": 3})
    assert fleet.get("/devices/member")["wanted_by"] == "group kiel"
    fleet.fleet.state.assignments._read_at_s = float("-inf")  # as two seconds later
    assert json.loads(device.poll().remote_config.config.config_map[WISH_FILE].body)["release"] == 3
    fleet.do("PUT", "/groups/ships", {"expression": 'labels.site.startsWith("k")'})
    fleet.do("PUT", "/groups/ships/release", {"release": 4})
    shown = fleet.get("/devices/member")
    assert (shown["wanted"], shown["groups"]) == (None, ["kiel", "ships"])
    assert "different releases" in shown["problem"]
    fleet.fleet.state.assignments._read_at_s = float("-inf")
    statuses = opamp_pb2.PackageStatuses(
        packages={RELEASE_PACKAGE: opamp_pb2.PackageStatus(name=RELEASE_PACKAGE, agent_has_version="3")}
    )
    wish = device.poll(package_statuses=statuses).remote_config.config.config_map[WISH_FILE]
    assert json.loads(wish.body)["release"] == 3, "what it runs; with none it would take the newest"
    fleet.do("PUT", "/devices/member/release", {"release": 5})
    assert fleet.get("/devices/member")["wanted"] == 5
    fleet.do("DELETE", "/groups/ships")
    fleet.do("DELETE", "/groups/kiel")


def test_a_gap_in_the_sequence_asks_for_the_full_state_and_a_full_state_ends_it(fleet: Service) -> None:
    device = fleet.enrolled("gap")
    assert not device.poll().flags & FULL_STATE
    device.sequence_num += 3
    assert device.poll().flags & FULL_STATE
    assert not device.poll(agent_description=device.description()).flags & FULL_STATE
    device.sequence_num = 0
    assert device.poll().flags & FULL_STATE


def test_a_copied_disk_and_a_copied_uid_are_both_shown(fleet: Service) -> None:
    device = fleet.enrolled("copied")
    for started in (10, 20, 10):
        device.poll(health=opamp_pb2.ComponentHealth(healthy=True, start_time_unix_nano=started))
    assert fleet.get("/devices/copied")["double"] == "two processes use its key"
    one, two = FakeDevice(fleet, "one", uid=b"u" * 16), FakeDevice(fleet, "two", uid=b"u" * 16)
    for twin in (one, two):
        twin.enrol(fleet.enrolment_token())
    found = {name: fleet.get(f"/devices/{name}") for name in ("one", "two")}
    assert found["one"]["double"] == f"the same instance UID as {found['two']['id']}, but another key"


def test_a_restart_is_no_double(fleet: Service) -> None:
    device = fleet.enrolled("restarted")
    for started in (10, 20, 30):
        device.poll(health=opamp_pb2.ComponentHealth(healthy=True, start_time_unix_nano=started))
    assert fleet.get("/devices/restarted")["double"] == ""


def test_a_question_reaches_the_device_and_its_answer_comes_back(fleet: Service) -> None:
    device = fleet.enrolled("asked")
    asked = fleet.do("POST", "/devices/asked/questions", {"request_id": "r-1"})
    fleet.fleet.state.questions._read_at_s = float("-inf")  # as a second later
    assert not device.poll().HasField("custom_message")
    custom = opamp_pb2.CustomCapabilities(capabilities=[EXPLAIN, STATISTICS])
    question = device.poll(custom_capabilities=custom).custom_message
    assert (question.capability, question.type) == (EXPLAIN, "ask")
    assert json.loads(question.data) == {"id": asked["id"], "request": "r-1"}
    told = json.dumps({"id": asked["id"], "sections": [["request", ["id r-1"]]]}).encode()
    device.poll(custom_message=opamp_pb2.CustomMessage(capability=EXPLAIN, type="told", data=told))
    assert fleet.get(f"/questions/{asked['id']}")["answer"] == {"sections": [["request", ["id r-1"]]]}
    assert not device.poll().HasField("custom_message")


def test_statistics_are_kept_by_release_and_what_is_no_statistics_is_refused(fleet: Service) -> None:
    device = fleet.enrolled("counting")
    counted = {"release": 4, "since_unix_s": 100.0, "counts": {"requests": 12, "late": 1}}
    device.poll(custom_message=custom(STATISTICS, "counted", counted))
    fleet.server._upkeep._write()
    history = fleet.get("/devices/counting/history")["history"]
    assert [(one["release"], one["counts"]) for one in history] == [(4, {"requests": 12, "late": 1})]
    no_statistics: list[object] = [{"release": "4"}, [], {"release": 4, "since_unix_s": True, "counts": {}}]
    for wrong in no_statistics:
        message = device.message(custom_message=custom(STATISTICS, "counted", wrong))
        assert device.send(message.SerializeToString()).status == HTTPStatus.BAD_REQUEST


def test_drift_is_kept_apart_from_statistics_and_its_findings_are_events(fleet: Service) -> None:
    device = fleet.enrolled("drifting")
    assert DRIFT in device.poll().custom_capabilities.capabilities
    assert fleet.get("/devices/drifting")["drift"] is None
    device.poll(custom_message=custom(DRIFT, "found", {"models": {"digits": {"findings": [], "rows": 5}}}))
    fleet.server._upkeep._write()
    assert fleet.get("/devices/drifting")["drift"] == {"digits": {"findings": [], "rows": 5}}
    for findings in (["camera"], ["camera"], []):
        device.poll(custom_message=custom(DRIFT, "found", {"models": {"digits": {"findings": findings}}}))
        assert fleet.get("/devices/drifting")["drift"] == {"digits": {"findings": findings}}
    events = fleet.get("/events?device=drifting")["events"]
    assert [one["text"] for one in events if one["kind"] == "drift"] == ["digits: camera", "no model drifts any more"]
    no_drift: list[object] = [{"models": []}, {"models": {"digits": []}}, {"models": {"d": {"findings": "camera"}}}, {}]
    no_drift.append({"models": {"d": {"findings": [], "quantities": []}}})
    no_drift.append({"models": {"d": {"findings": [], "quantities": {"brightness": 3}}}})
    for wrong in no_drift:
        message = device.message(custom_message=custom(DRIFT, "found", wrong))
        assert device.send(message.SerializeToString()).status == HTTPStatus.BAD_REQUEST
    assert fleet.get("/devices/drifting")["drift"] == {"digits": {"findings": []}}


def test_what_a_poll_writes_at_once_is_not_undone_by_a_batch(fleet: Service) -> None:
    device, state = fleet.enrolled("changing"), fleet.fleet.state
    for _ in range(2):  # the second, which says nothing new, waits for the batch
        device.poll(custom_message=custom(DRIFT, "found", {"models": {"digits": {"findings": ["camera"]}}}))
    device_id = fleet.get("/devices/changing")["id"]
    after: dict[str, object] = {"digits": {"findings": []}}
    batch = threading.Thread(target=fleet.server._upkeep._write)
    with state.database.writing() as connection:  # as a third poll does
        batch.start()
        batch.join(0.2)  # it cannot end before this transaction
        state.presence.drifted(device_id, after)
        connection.execute(DEVICES.update().where(DEVICES.c.id == device_id).values(drift=after))
    batch.join()
    assert fleet.get("/devices/changing")["drift"] == after


def test_a_database_that_takes_nothing_is_said_and_what_devices_say_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with service(tmp_path) as fleet:
        device = fleet.enrolled("full")
        engine = fleet.fleet.state.database._engine

        def fill(connection: sqlite3.Connection, *_: object) -> None:
            connection.execute("PRAGMA max_page_count = 1")  # no page more than there are, as on a full disk

        event.listen(engine, "checkout", fill)
        message = device.message(agent_description=device.description(**{f"a{n}": "x" * 400 for n in range(50)}))
        for _ in range(2):
            refused = device.send(message.SerializeToString())
            assert (refused.status, refused.retry_after_s) == (HTTPStatus.SERVICE_UNAVAILABLE, 60.0)
        status, said = fleet.call("POST", "/tokens", {"labels": {str(number): "x" * 199 for number in range(60)}})
        assert (status, said["detail"]) == (503, "the database cannot be used now; the service's log says why")
        assert fleet.get("/devices/full")["name"] == "full", "what only asks is answered"
        device.poll(custom_message=custom(DRIFT, "found", {"models": {"m": {"findings": [], "text": "x" * 9000}}}))
        fleet.server._upkeep._write()
        event.remove(engine, "checkout", fill)
        engine.dispose()
        fleet.server._upkeep._write()
        assert fleet.get("/devices/full")["drift"] is not None
        device.send(message.SerializeToString())
        assert fleet.get("/devices/full")["attributes"]["a49"]
    (once,) = {one.getMessage() for one in caplog.records if "database" in one.getMessage()}
    assert once == "the database cannot be used: database or disk is full"


def custom(capability: str, kind: str, data: object) -> opamp_pb2.CustomMessage:
    return opamp_pb2.CustomMessage(capability=capability, type=kind, data=json.dumps(data).encode())


def test_effective_configuration_is_kept_as_digests_alone(fleet: Service) -> None:
    device = fleet.enrolled("configured")
    effective = opamp_pb2.EffectiveConfig()
    effective.config_map.config_map["agent.yaml"].body = b"token: secret"
    effective.config_map.config_map["policy.yaml"].body = b"ab" * 32
    effective.config_map.config_map["policy.yaml"].content_type = "text/x-digest"
    device.poll(effective_config=effective)
    kept = fleet.get("/devices/configured")["configuration"]
    assert kept["policy.yaml"] == "ab" * 32
    assert "secret" not in json.dumps(kept)
    assert len(kept["agent.yaml"]) == 64


def test_what_is_too_large_or_unreadable_is_refused_in_one_sentence(fleet: Service) -> None:
    device = fleet.enrolled("attacker")
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < 256 << 10
    cases = {
        (b"\xff" * 40, ""): (HTTPStatus.BAD_REQUEST, "cannot be read"),
        (b"", ""): (HTTPStatus.BAD_REQUEST, "instance_uid"),
        (bytes(300 << 10), ""): (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "at most 262144"),
        (bomb, "gzip"): (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "once unpacked"),
        (b"no gzip", "gzip"): (HTTPStatus.BAD_REQUEST, "gzip"),
        (gzip.compress(b"x" * 100)[:-4], "gzip"): (HTTPStatus.BAD_REQUEST, "gzip"),
        (zlib.compress(b"x"), "br"): (HTTPStatus.BAD_REQUEST, "Content-Encoding"),
    }
    for (body, packing), (status, words) in cases.items():
        received = device.send(body, {"Content-Encoding": packing} if packing else {})
        assert received.status == status
        assert words in opamp_pb2.ServerToAgent.FromString(received.body).error_response.error_message
    packed = gzip.compress(device.message().SerializeToString())
    assert device.send(packed, {"Content-Encoding": "gzip"}).status == HTTPStatus.OK


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_no_mutation_of_a_message_breaks_the_service(fleet: Service, count: int) -> None:
    """The messages go through the endpoint's own path without sockets, since the bytes are what is tried."""
    device = fleet.enrolled(f"mutant-{count}")
    assert device.files.cert is not None
    serial = f"{x509.load_pem_x509_certificate(device.files.cert.read_bytes()).serial_number:x}"
    seconds = itertools.count(10**9)
    exchange = PollHandler(
        fleet.fleet.state, ConnectionSettings("https://x", 60.0, b""), lambda: Instant(float(next(seconds)), 1.0)
    )
    message = device.message(
        agent_description=device.description(**{"upwell.label.site": "hh"}),
        health=opamp_pb2.ComponentHealth(healthy=True, start_time_unix_nano=7),
        custom_message=custom(STATISTICS, "counted", {"release": 1, "since_unix_s": 1.0, "counts": {"requests": 1}}),
        capabilities=CAPABILITIES,
    )
    message.package_statuses.packages["release"].agent_has_version = "3"
    good, chance, said = message.SerializeToString(), random.Random(1), list[str]()
    for _ in range(count):
        data = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[place] = chance.randrange(256)
                case 1:
                    del data[place : place + chance.randint(1, 9)]
                case 2:
                    data[place:place] = chance.randbytes(chance.randint(1, 9))
                case _:
                    data = data + data[place:]
            data = data or bytearray(b"\0")
        try:
            write(exchange.answer(read(bytes(data)), Peer(serial)))
        except UpwellError as error:
            said.append(str(error))
    assert 0 < len(said) < count
    assert max(map(len, said)) < 300
    device.poll(agent_description=device.description())
    assert fleet.get(f"/devices/mutant-{count}")["id"]


def test_sql_and_html_in_names_and_labels_are_text(fleet: Service) -> None:
    nasty = "'; DROP TABLE devices; --<script>alert(1)</script>\x1b[31m"
    device = fleet.enrolled("nasty")
    device.poll(agent_description=device.description(**{"upwell.agent.name": nasty, "upwell.label." + nasty: nasty}))
    found = next(one for one in fleet.get("/devices")["devices"] if "DROP TABLE" in one["name"])
    assert found["name"] == nasty.replace("\x1b", "\ufffd")
    assert list(found["labels"].values()) == [nasty.replace("\x1b", "\ufffd")]
    status, problem = fleet.call("PUT", f"/devices/{found['id']}/labels", {"labels": {"a": "\x00"}})
    assert (status, problem["status"]) == (400, 400)


def test_the_service_takes_another_certificate_while_devices_connect(fleet: Service) -> None:
    device = fleet.enrolled("during-renewal")
    for _ in range(3):
        fleet.server._renew()
        device.poll()
    assert fleet.server._renewed is not fleet.server._server.config.ssl
