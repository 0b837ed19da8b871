"""`upwell infer` as a person types it, against an agent and a plain server of the protocol on real sockets."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.certificates import Authority
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.server.agent_dataplane import AgentDataplane
from upwell.shared.config.security import ServerSecurity, TlsFiles
from upwell.shared.oip.dataplane import Call, Dataplane, InferRequest, InferResponse, ModelMetadata
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import Connections, start_server
from upwell.shared.oip.http.server.server import start_http_server
from upwell.shared.tensors import TensorSpec
from upwell.tools.cli import main
from upwell.tools.demo.digit_data import ASSETS, digit_png, heldout, pages

pytest.importorskip("onnxruntime")

Cli = Callable[..., tuple[int, str, str]]
Serve = Callable[..., str]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `upwell infer` with these arguments: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["upwell", "infer", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(end.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve a dataplane on a free loopback port."""
    with ExitStack() as stack:

        def start(dataplane: Dataplane, **options: Any) -> str:
            server = start_server(dataplane, ["127.0.0.1:0"], max_workers=4, **options)
            stack.callback(server.stop, 0)
            return server.addresses[0]

        yield start


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentCore]:
    """An agent with the demo's edge models, a rule about a tag, and a cloud that is not there."""
    (tmp_path / "policy.yaml").write_text(
        "defaults: {hard: {below: 0.0}}\nrules: [{name: up, match: {tags: {go: up}}, route: cloud}]\n"
    )
    (tmp_path / "agent.yaml").write_text(
        'cloud: {endpoint: "127.0.0.1:1"}\npolicy: policy.yaml\nmodels:\n'
        + "".join(
            f"  {name}: {{edge: {{bundle: {ASSETS}/edge/{name}}}, cloud: {{model: {name}}}}}\n"
            for name in ("digits", "pages")
        )
    )
    with embedded_agent(tmp_path / "agent.yaml") as running:
        yield running


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    """Three digits as PNG files."""
    paths = [tmp_path / f"{index}.png" for index in range(3)]
    for path, image in zip(paths, heldout().images[:3], strict=True):
        path.write_bytes(digit_png(image))
    return paths


def test_picture_gets_route_reason_times_and_best_classes(
    cli: Cli, serve: Serve, agent: AgentCore, pictures: list[Path]
) -> None:
    code, out, err = cli("digits", pictures[0], "--at", serve(AgentDataplane(agent)))
    assert (code, err) == (0, "")
    lines = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1].strip() for line in out.splitlines() if line.strip()}
    assert (lines["model"], lines["route"], lines["reason"]) == ("digits, version 1", "edge", "easy")
    assert lines["degraded"] == "no"
    assert " ms in all, device " in lines["time"]
    assert lines["row"].startswith(f"0   {heldout().labels[0]}: "), "the labels of model.yaml"
    assert 0 <= float(lines["hardness"]) <= 1


def test_several_pictures_are_several_rows_and_json_has_every_value(
    cli: Cli, serve: Serve, agent: AgentCore, pictures: list[Path]
) -> None:
    code, out, err = cli("digits", *pictures, "--at", serve(AgentDataplane(agent)), "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    expected = [agent.infer("digits", {"image": path.read_bytes()}).outputs["scores"][0] for path in pictures]
    scores = answer["outputs"]["scores"]
    assert (scores["datatype"], scores["shape"]) == ("FP32", [3, 10])
    np.testing.assert_allclose(np.reshape(scores["data"], (3, 10)), expected, atol=1e-6)
    assert (answer["route"], answer["reason"], answer["degraded"]) == ("edge", "easy", False)
    assert answer["elapsed_s"] >= answer["parameters"]["upwell.edge_ms"] / 1e3 > 0
    assert answer["parameters"]["upwell.edge_digest"].startswith("sha256:")
    facts = answer["parameters"]
    assert (facts["upwell.agent"], facts["upwell.version"]) == ("agent", version("upwell"))
    assert scores["labels"] == [str(digit) for digit in range(10)]
    assert not any("labels" in name for name in answer["parameters"])


def test_tag_reaches_the_policy_and_a_degraded_answer_says_so(
    cli: Cli, serve: Serve, agent: AgentCore, pictures: list[Path]
) -> None:
    _, out, _ = cli("digits", f"image={pictures[0]}", "--at", serve(AgentDataplane(agent)), "--tag", "go=up", "--json")
    answer = json.loads(out)
    assert (answer["route"], answer["reason"], answer["degraded"]) == ("edge", "cloud_unavailable", True)


def test_other_outputs_show_their_first_values(cli: Cli, serve: Serve, agent: AgentCore, tmp_path: Path) -> None:
    (tmp_path / "page.png").write_bytes(pages(1, seed=1)[0].png)
    code, out, _ = cli("pages", tmp_path / "page.png", "--at", serve(AgentDataplane(agent)))
    assert code == 0
    assert "scores  FP32 [1, 60, 10]" in out
    assert out.rstrip().endswith(", …")


def test_arrays_reach_any_server_bit_for_bit(cli: Cli, serve: Serve, tmp_path: Path) -> None:
    fake = FakeDataplane()
    single = np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3))
    np.save(tmp_path / "one.npy", single)
    np.savez_compressed(tmp_path / "many.npz", int64=np.arange(4).reshape(2, 2), bool=np.array([[True, False]]))
    at = serve(fake)
    code, out, err = cli("echo", f"fp32={tmp_path / 'one.npy'}", tmp_path / "many.npz", "--at", at, "--deadline", "9s")
    assert (code, err) == (0, "")
    sent = fake.requests[0].inputs
    np.testing.assert_array_equal(sent["fp32"], single.astype(np.float32))
    np.testing.assert_array_equal(sent["int64"], np.arange(4).reshape(2, 2))
    assert sent["bool"].tolist() == [[True, False]]
    assert fake.calls[0].deadline_s < float("inf")
    assert "route" not in out  # a server that is no agent has none to tell


def test_only_probabilities_are_classes_where_there_are_no_labels(cli: Cli, serve: Serve, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", fp32=np.array([[0.1, 0.9]], np.float32), fp64=np.array([[0.6, -0.8]]))
    _, out, _ = cli("echo", tmp_path / "in.npz", "--at", serve(FakeDataplane()))
    assert "class 1: 0.900   class 0: 0.100" in out
    assert "\n  0.6, -0.8" in out


def test_a_url_is_asked_over_http(cli: Cli, tmp_path: Path) -> None:
    server = start_http_server(FakeDataplane(), ["127.0.0.1:0"], max_workers=4)
    np.savez(tmp_path / "inputs.npz", fp32=np.array([[0.1, -2.5]], np.float32))
    code, out, _ = cli("echo", tmp_path / "inputs.npz", "--at", f"http://{server.addresses[0]}", "--json")
    server.stop(0)
    assert code == 0
    assert json.loads(out)["outputs"]["fp32"]["data"] == [float(np.float32(0.1)), -2.5]


def test_values_that_json_cannot_hold_become_null_or_text(cli: Cli, serve: Serve, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", fp16=np.array([[np.nan, 1.5]], np.float16), bytes=np.array([[b"a\xff"]]))
    _, out, _ = cli("echo", tmp_path / "in.npz", "--at", serve(FakeDataplane()), "--json")
    outputs = json.loads(out)["outputs"]
    assert outputs["fp16"]["data"] == [None, 1.5]
    assert outputs["bytes"]["data"] == ["a\\xff"]


class Fp32Only(FakeDataplane):
    """A server whose one model takes one float input, and whose words try to command the terminal."""

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return ModelMetadata(model, ("1",), "none", (TensorSpec("fp32", "FP32", (-1, 3)),), ())

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        answer = super().infer(request, call)
        return InferResponse("echo", answer.outputs, "1", "\x1b[31mred", {"upwell.reason": "[bold]x\x07"})


def test_bare_array_goes_to_the_only_input_and_no_picture_does(
    cli: Cli, serve: Serve, tmp_path: Path, pictures: list[Path]
) -> None:
    fake = Fp32Only()
    at = serve(fake)
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    assert cli("echo", tmp_path / "x.npy", "--at", at)[0] == 0
    assert list(fake.requests[0].inputs) == ["fp32"]
    code, _, err = cli("echo", pictures[0], "--at", at)
    assert code == 2
    assert "input 'fp32' takes FP32 [-1, 3]; expected a .npy or .npz file" in err


def test_servers_words_cannot_command_the_terminal(cli: Cli, serve: Serve, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    _, out, _ = cli("echo", tmp_path / "x.npy", "--at", serve(Fp32Only()))
    assert "[bold]x�" in out
    assert "�[31mred" in out
    assert not {"\x1b", "\x07"} & set(out)


def test_bare_file_for_one_of_many_inputs_is_refused_with_their_names(
    cli: Cli, serve: Serve, pictures: list[Path]
) -> None:
    code, _, err = cli("echo", pictures[0], "--at", serve(FakeDataplane()))
    assert code == 2
    assert "takes the inputs bool, uint8," in err
    assert "write NAME=FILE for each" in err


def _npy(shape: str, descr: str = "'<f4'", data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def _zip(member: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", member)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.npy", _npy("(1000000000000,)"), "says 4000000000000 bytes, but the file has 0"),
        ("x.npy", _npy("(-2, -3)", data=bytes(24)), "not a NumPy file"),
        ("x.npy", _npy("(1,)", "'|O'", b"cos\nsystem\n"), "contains Python objects"),
        ("x.npy", _npy("().__class__"), "not a NumPy file"),
        ("x.npy", b"not numpy", "not a NumPy file"),
        ("x.npz", b"not a zip", "not a NumPy file"),
        ("x.npz", _zip(_npy("(9,)", data=bytes(8))), "says 36 bytes, but the file has 8"),
        pytest.param("x.npz", _zip(b"x" * 100)[:-90], "not a NumPy file", id="cut short"),  # holds the time
        ("X.NPZ", b"not a zip", "not a NumPy file"),
        ("x.png", b"", "the file is empty"),
    ],
)
def test_wrong_files_get_one_sentence(cli: Cli, tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    code, out, err = cli("m", tmp_path / name, "--at", "127.0.0.1:1")
    assert (code, out) == (2, "")
    assert said in err
    assert str(tmp_path / name) in err


def test_a_zip_that_unpacks_to_more_than_the_limit_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(_zip(bytes(65 << 20)))
    code, _, err = cli("m", tmp_path / "x.npz", "--at", "127.0.0.1:1")
    assert code == 2
    assert f"{tmp_path / 'x.npz'}: " in err
    assert "at most 67108864 bytes are allowed" in err


def test_file_over_the_message_limit_is_refused_before_it_is_sent(cli: Cli, tmp_path: Path) -> None:
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate((64 << 20) + 1)
    code, _, err = cli("m", f"image={tmp_path / 'large.png'}", "--at", "127.0.0.1:1")
    assert code == 2
    assert "the file is larger than 67108864 bytes" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["x=nothing.png", "--at", "127.0.0.1:1"], 2, "nothing.png: cannot read the file: No such file"),
        (["x=PICTURE", "--at", "nowhere"], 2, "expected HOST:PORT"),
        (["x=PICTURE", "--at", "127.0.0.1:1", "--deadline", "100"], 2, "write 100ms or 100s"),
        (["x=PICTURE", "--at", "127.0.0.1:1", "--deadline", "0"], 2, "expected more than 0"),
        (["x=PICTURE", "--at", "127.0.0.1:1", "--tag", "dock"], 2, "expected KEY=VALUE, got 'dock'"),
        (["x=PICTURE", "--at", "127.0.0.1:1", "--insecure", "--ca", "ca.pem"], 2, "give only one of them"),
        (["x=PICTURE", "--at", "127.0.0.1:1"], 1, "127.0.0.1:1 does not answer: UNAVAILABLE"),
    ],
)
def test_wrong_use_gets_one_sentence(
    cli: Cli, pictures: list[Path], arguments: list[str], code: int, said: str
) -> None:
    given = [argument.replace("PICTURE", str(pictures[0])) for argument in arguments]
    got, out, err = cli("m", *given)
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


def test_servers_refusal_is_shown_in_its_own_words(
    cli: Cli, serve: Serve, agent: AgentCore, tmp_path: Path, pictures: list[Path]
) -> None:
    at = serve(AgentDataplane(agent))
    code, _, err = cli("letters", pictures[0], "--at", at)
    assert code == 1
    assert "NOT_FOUND: Request for unknown model: no model 'letters' here; available: digits, pages" in err
    (tmp_path / "text.png").write_text("no picture")
    code, _, err = cli("digits", tmp_path / "text.png", "--at", at)
    assert code == 1
    assert "INVALID_ARGUMENT" in err


def test_an_agent_without_its_cloud_is_not_said_to_be_silent(
    cli: Cli, serve: Serve, tmp_path: Path, pictures: list[Path]
) -> None:
    (tmp_path / "alone.yaml").write_text('cloud: {endpoint: "127.0.0.1:1"}\nmodels: {far: {cloud: {model: digits}}}\n')
    with embedded_agent(tmp_path / "alone.yaml") as agent:
        at = serve(AgentDataplane(agent))
        code, _, err = cli("far", f"image={pictures[0]}", "--at", at)
    assert code == 1
    assert f"{at} says: UNAVAILABLE: cloud_unavailable: UNAVAILABLE: " in err


def test_same_input_twice_is_refused(cli: Cli, tmp_path: Path, pictures: list[Path]) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    twice = f"x={tmp_path / 'x.npy'}"
    assert "repeated" in cli("m", twice, twice, "--at", "127.0.0.1:1")[2]
    assert "both as an array and as a picture" in cli("m", twice, f"x={pictures[0]}", "--at", "127.0.0.1:1")[2]


def test_tls_and_token_open_a_protected_server(cli: Cli, serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    digest = hashlib.sha256(b"secret").hexdigest()
    (tmp_path / "tokens.yaml").write_text(f"version: 1\ntokens: [{{name: me, sha256: {digest}}}]\n")
    (tmp_path / "token").write_text("secret\n")
    np.save(tmp_path / "x.npy", np.ones((1, 3), np.float32))
    security = ServerSecurity(TlsFiles(pair.cert, pair.key), tmp_path / "tokens.yaml")
    call = ("echo", f"fp32={tmp_path / 'x.npy'}", "--at", serve(FakeDataplane(), connections=Connections(security)))
    assert cli(*call, "--ca", authority.ca, "--token-file", tmp_path / "token")[0] == 0
    code, _, err = cli(*call, "--ca", authority.ca)
    assert code == 1
    assert "UNAUTHENTICATED" in err
    (tmp_path / "other").mkdir()
    code, _, err = cli(*call, "--ca", Authority(tmp_path / "other", "another").ca, "--token-file", tmp_path / "token")
    assert code == 1
    assert " does not answer: " in err, "the certificate was refused here, so the server has said nothing"
    assert cli(*call, "--token-file", tmp_path / "token", "--deadline", "2s")[0] == 1  # no TLS on loopback unasked
