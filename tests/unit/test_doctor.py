"""`upwell doctor`: what it makes of packages, ports, disks, clocks, certificates and files."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.certificates import Authority
from tests.in_process import InProcess
from tests.unit.models_for_tests import linear
from upwell.edge.spool.open_database import open_database
from upwell.edge.spool.spool_store import SCHEMA
from upwell.shared.config.security import ServerSecurity
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import Connections, start_server
from upwell.tools.doctor_cli import DoctorFinding, conflicts, disk, expiry, ports

DAY_S = 86400.0


def levels(findings: Iterator[DoctorFinding]) -> list[tuple[str, str]]:
    return [(one.subject, one.level) for one in findings]


def test_packages_that_do_not_go_together_are_problems() -> None:
    assert levels(conflicts({"numpy": "2.4.6", "onnxruntime": "1.32"})) == []
    both = {"onnxruntime": "1.32", "onnxruntime-openvino": "1.24", "onnxruntime-qnn": "2.7"}
    assert levels(conflicts(both)) == [("onnxruntime", "problem")]
    assert levels(conflicts({"numpy": "2.4.6", "tflite-runtime": "2.14"})) == [("tflite-runtime", "problem")]
    assert levels(conflicts({"numpy": "1.26.4", "tflite-runtime": "2.14"})) == []
    assert levels(conflicts({"numpy": "2.4.6"})) == [("runtimes", "warning")]


def test_a_port_is_free_in_use_or_cannot_be_had(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        asked = ["127.0.0.1:0", address, f"unix:{tmp_path}/s", f"unix:{tmp_path}/none/s", "192.0.2.1:80"]
        found = list(ports(asked))
    assert [one.level for one in found] == ["ok", "warning", "ok", "problem", "problem"]
    assert "fine if that is this agent or service" in found[1].text


def test_a_disk_without_room_is_a_warning(tmp_path: Path) -> None:
    assert levels(disk("state_dir", tmp_path / "not" / "yet", 1)) == [("state_dir", "ok")]
    assert levels(disk("state_dir", tmp_path, 1 << 60)) == [("state_dir", "warning")]


@pytest.mark.parametrize(("left_s", "level"), [(-1, "problem"), (DAY_S, "warning"), (90 * DAY_S, "ok")])
def test_a_certificate_that_ends_soon_is_a_warning(left_s: float, level: str) -> None:
    assert expiry("tls", Path("a.pem"), 1_000_000 + left_s, 1_000_000).level == level


@pytest.fixture
def folder(tmp_path: Path, authority: Authority) -> Path:
    authority.issue(tmp_path / "device.pem", tmp_path / "device.key", "device")
    (tmp_path / "policy.yaml").write_text("version: 1\ndefaults: {deadline: 100ms}\n")
    return tmp_path


def report(in_process: InProcess, *paths: Path) -> tuple[int, dict[str, list[dict[str, str]]]]:
    arguments = [part for path in paths for part in ("-c", path)]
    done = in_process("doctor", "--quick", "--json", *arguments)
    by_subject: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(done.out)["findings"]:
        by_subject.setdefault(one["subject"], []).append(one)
    return done.code, by_subject


def test_an_agent_s_file_is_looked_at_with_all_that_it_names(folder: Path, in_process: InProcess) -> None:
    server = start_server(FakeDataplane(), ["127.0.0.1:0"], max_workers=2)
    path = folder / "agent.yaml"
    path.write_text(
        f"version: 1\nagent: {{listen: ['127.0.0.1:0'], state_dir: state}}\npolicy: policy.yaml\n"
        f"cloud: {{endpoint: '{server.addresses[0]}', fallbacks: ['127.0.0.1:1']}}\n"
        "models: {digits: {cloud: {model: digits}}}\n"
    )
    try:
        code, found = report(in_process, path)
    finally:
        server.stop(0)
    assert [one["level"] for one in found["cloud"]] == ["ok", "problem"]
    assert "fake" in found["cloud"][0]["text"]
    assert (code, found["policy"][0]["level"], found["state_dir"][0]["level"]) == (1, "ok", "ok")
    assert found["upwell"][0]["text"]
    assert "numpy" in found["packages"][0]["text"]


def test_a_cloud_that_rejects_the_token_is_quoted_and_not_said_to_be_silent(
    folder: Path, in_process: InProcess
) -> None:
    (folder / "tokens.yaml").write_text(f"tokens: [{{name: other, sha256: {'0' * 64}}}]\n")
    security = ServerSecurity(tokens=folder / "tokens.yaml")
    server = start_server(FakeDataplane(), ["127.0.0.1:0"], max_workers=2, connections=Connections(security))
    path = folder / "agent.yaml"
    path.write_text(f"cloud: {{endpoint: '{server.addresses[0]}'}}\nmodels: {{digits: {{cloud: {{model: digits}}}}}}\n")
    try:
        _, found = report(in_process, path)
    finally:
        server.stop(0)
    assert f"{server.addresses[0]} says: UNAUTHENTICATED: this server requires a token" in found["cloud"][0]["text"]


def test_certificates_and_models_of_a_service_are_looked_at(folder: Path, in_process: InProcess) -> None:
    version = folder / "models" / "digits" / "3"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"")
    path = folder / "cloud.yaml"
    text = "version: 1\nserve: {listen: ['127.0.0.1:0'], models: models, tls: {cert: device.pem, key: device.key}}\n"
    path.write_text(text)
    code, found = report(in_process, path)
    assert found["serve.tls"][0]["level"] in ("ok", "warning")
    assert (code, found["models"][0]["text"]) == (0, "digits/3")
    os.truncate(folder / "device.pem", 40)
    path.write_text(text.replace("models: models", "models: none"))
    code, found = report(in_process, path)
    assert (code, found["serve.tls"][0]["level"], found["models"][0]["level"]) == (1, "problem", "problem")


@pytest.mark.parametrize("text", ["serve: {", "agent: 3", "version: 1\nserve: {listne: []}\n"])
def test_a_file_that_is_wrong_is_a_problem_and_not_the_end(tmp_path: Path, in_process: InProcess, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    code, found = report(in_process, tmp_path / "x.yaml", tmp_path / "missing.yaml")
    assert code == 1
    assert {one["level"] for one in found["configuration"]} == {"problem"}
    assert "x.yaml" in found["configuration"][0]["text"]
    assert "missing.yaml" in found["configuration"][-1]["text"]


def test_files_of_models_that_are_missing_or_changed_are_problems(tmp_path: Path, in_process: InProcess) -> None:
    linear(tmp_path).rename(tmp_path / "plain.onnx")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    linear(bundle).rename(bundle / "model.onnx")
    path = tmp_path / "agent.yaml"
    path.write_text(
        "version: 1\nagent: {listen: ['127.0.0.1:0']}\nmodels:\n  bare: {edge: {file: plain.onnx}}\n"
        "  packed: {edge: {bundle: bundle}}\n  gone: {edge: {file: none.onnx}}\n  nowhere: {edge: {bundle: none}}\n"
        "  unwritten: {edge: {file: plain.onnx}, split: none}\n"
    )
    code, found = report(in_process, path)
    levels = [one["level"] for one in found["model"]]
    assert (code, levels, found["split"][0]["level"]) == (1, ["ok", "ok", "problem", "problem", "ok"], "problem")
    assert "none.onnx" in found["model"][2]["text"]
    (bundle / "manifest.json").write_text("{}")
    os.truncate(tmp_path / "plain.onnx", 0)
    (tmp_path / "plain.yaml").write_text("version: 7\n")
    found = report(in_process, path)[1]
    assert {one["level"] for one in found["model"]} == {"problem"}


def test_damaged_databases_of_an_agent_are_problems_and_lost_ones_warnings(
    tmp_path: Path, in_process: InProcess
) -> None:
    linear(tmp_path).rename(tmp_path / "plain.onnx")
    state, path = tmp_path / "state", tmp_path / "agent.yaml"
    path.write_text(
        "{version: 1, agent: {listen: ['127.0.0.1:0'], state_dir: state}, models: {plain: {edge: {file: plain.onnx}}}}"
    )
    for name in ("cases.db", "outbox.db"):
        open_database(state / name, SCHEMA).close()
    assert report(in_process, path)[0] == 0
    assert sorted(one.name for one in state.iterdir()) == ["cases.db", "outbox.db"]
    (state / "outbox.db").write_bytes(b"no database" * 1000)
    (state / "spool.db.damaged").touch()
    code, found = report(in_process, path)
    assert (code, [one["level"] for one in found["state_dir"]]) == (1, ["ok", "warning", "problem"])
    assert "spool.db.damaged" in found["state_dir"][1]["text"]
    assert "outbox.db: file is not a database" in found["state_dir"][2]["text"]


def test_a_service_s_file_in_flow_style_is_one(tmp_path: Path, in_process: InProcess) -> None:
    (tmp_path / "cloud.yaml").write_text("{version: 1, serve: {listen: ['127.0.0.1:0'], models: none}}\n")
    assert "models" in report(in_process, tmp_path / "cloud.yaml")[1]


def test_a_pipe_is_a_problem_and_is_not_waited_for(folder: Path, in_process: InProcess) -> None:
    for name in ("fifo.yaml", "policy.fifo", "plain.yaml", "cert.fifo"):
        os.mkfifo(folder / name)
    linear(folder).rename(folder / "plain.onnx")
    path = folder / "agent.yaml"
    path.write_text(
        "version: 1\nagent: {listen: ['127.0.0.1:0'], tls: {cert: cert.fifo, key: device.key}}\npolicy: policy.fifo\n"
        "models: {bare: {edge: {file: plain.onnx}}}\n"
    )
    found = report(in_process, path, folder / "fifo.yaml")[1]
    subjects = ("configuration", "agent.tls", "policy", "model")
    assert all("it is a pipe" in found[subject][-1]["text"] for subject in subjects)


def test_files_that_an_agent_needs_besides_are_looked_at(folder: Path, in_process: InProcess) -> None:
    linear(folder).rename(folder / "plain.onnx")
    (folder / "token").write_text("secret")
    (folder / "pipelines.yaml").write_text("version: 1\npipelines: {door: {source: {video: a.mp4}, stepps: []}}\n")
    path = folder / "agent.yaml"
    path.write_text(
        "version: 1\nagent: {listen: ['127.0.0.1:0'], tokens: tokens.yaml, trust: {keys: [device.pem, gone.pem]}}\n"
        "cloud: {endpoint: '127.0.0.1:1', token_file: token}\npipelines: pipelines.yaml\n"
        "models: {plain: {edge: {file: plain.onnx}}}\n"
    )
    code, found = report(in_process, path)
    levels = {key: [one["level"] for one in found[key]] for key in ("agent.tokens", "agent.trust.keys")}
    assert (code, levels) == (1, {"agent.tokens": ["problem"], "agent.trust.keys": ["ok", "problem"]})
    assert found["cloud.token_file"] == [{"subject": "cloud.token_file", "level": "ok", "text": f"{folder}/token"}]
    assert "stepps" in found["pipelines"][0]["text"]
    (folder / "pipelines.yaml").write_text("version: 1\npipelines: {door: {source: {video: a.mp4}}}\n")
    assert [one["level"] for one in report(in_process, path)[1]["pipelines"]] == ["ok"]


def test_the_issuers_for_a_model_s_updates_are_looked_at(folder: Path, in_process: InProcess) -> None:
    path = folder / "agent.yaml"
    updates = "{source: 'https://models.example/m.bundle.tar', ca: gone.pem}"
    path.write_text(
        "version: 1\nagent: {listen: ['127.0.0.1:0'], state_dir: state}\n"
        f"models: {{m: {{edge: {{updates: {updates}}}}}}}\n"
    )
    (found,) = report(in_process, path)[1]["models.m.edge.updates.ca"]
    assert (found["level"], found["text"].startswith(f"{folder}/gone.pem cannot be read")) == ("problem", True)


def test_a_key_that_is_not_that_of_its_certificate_is_a_problem(
    folder: Path, authority: Authority, in_process: InProcess
) -> None:
    authority.issue(folder / "other.pem", folder / "other.key", "other")
    path = folder / "cloud.yaml"
    expected = {
        "device.key": "", "other.key": "other.key is not the key of", "none.key": "none.key cannot be read",
        "device.pem": "contains no private key in PEM",
    }  # fmt: skip
    for key, said in expected.items():
        tls = f"tls: {{cert: device.pem, key: {key}}}"
        path.write_text(f"{{version: 1, serve: {{listen: ['127.0.0.1:0'], models: none, {tls}}}}}\n")
        problems = [one["text"] for one in report(in_process, path)[1]["serve.tls"] if one["level"] == "problem"]
        assert [said in one for one in problems] == ([True] if said else [])
