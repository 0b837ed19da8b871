"""OpenTelemetry's own client of OpAMP against the fleet service."""

from __future__ import annotations

from pathlib import Path

from opentelemetry._opamp.client import OpAMPClient
from opentelemetry._opamp.messages import decode_message
from opentelemetry._opamp.proto import opamp_pb2 as foreign

from tests.fleet_service import service


def test_a_foreign_client_reports_is_told_and_says_good_bye(tmp_path: Path) -> None:
    with service(tmp_path) as fleet:
        files = fleet.enrolled("foreign").files
        client = OpAMPClient(
            endpoint=f"{fleet.url}/v1/opamp",
            timeout_millis=10_000,
            agent_identifying_attributes={"service.name": "collector", "service.version": "9.1"},
            agent_non_identifying_attributes={"host.name": "far-away", "upwell.label.site": "kiel"},
            tls_certificate=str(fleet.ca),
            tls_client_certificate=str(files.cert),
            tls_client_key=str(files.key),
        )
        fleet.do("PUT", "/devices/foreign/release", {"release": 2})
        client.update_effective_config({"collector.yaml": "receivers: {}"}, "text/yaml")
        told = client.send(client.build_full_state_message())
        assert told.capabilities & foreign.ServerCapabilities_OffersRemoteConfig
        assert dict(client.decode_remote_config(told.remote_config))["fleet.json"]["release"] == 2
        status = client.update_remote_config_status(
            told.remote_config.config_hash, foreign.RemoteConfigStatuses_FAILED, "a collector has no releases"
        )
        assert status is not None
        told = client.send(client.build_remote_config_status_response_message(status))
        assert not told.HasField("remote_config")
        assert not client.send(client.build_heartbeat_message()).flags
        shown = fleet.get("/devices/far-away")
        assert (shown["version"], shown["labels"]["site"]) == ("9.1", "kiel")
        assert "a collector has no releases" in shown["problem"]
        assert set(shown["configuration"]) == {"collector.yaml"}
        client.send(client.build_agent_disconnect_message())
        assert fleet.get("/events?after=-1")["events"][-1]["kind"] == "stopped"


def test_a_foreign_client_is_told_what_is_wrong(tmp_path: Path) -> None:
    with service(tmp_path) as fleet:
        refused = fleet.enrolled().send(b"\xff")
        error = decode_message(refused.body).error_response
        assert (refused.status, error.type) == (400, foreign.ServerErrorResponseType_BadRequest)
