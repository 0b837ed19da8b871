"""Files that a person got wrong: one clear line for each problem, exit code 2, no traceback, nothing left behind."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.certificates import Authority
from tests.faults.oracles import EDGE_BUNDLE
from tests.faults.programs import Program
from tests.unit.models_for_tests import linear
from upwell.tools.cli import EXIT_USAGE, main

Run = Callable[[str], list[str]]
GOOD = "models: {m: {edge: {file: good.onnx}}}"
DIGITS = f"models: {{digits: {{edge: {{bundle: {EDGE_BUNDLE}}}}}}}"


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run `upwell agent` in this process on a text as agent.yaml, and give the lines of its one error."""
    linear(folder).rename(folder / "good.onnx")
    path = folder / "agent.yaml"
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def fail(text: str) -> list[str]:
        path.write_text(text)
        monkeypatch.setattr(sys, "argv", ["upwell", "agent", "-c", str(path)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capfd.readouterr()
        assert (caught.value.code, out) == (EXIT_USAGE, "")
        assert "Traceback" not in err
        _, found, error = err.partition("error: ")
        assert found, err
        return error.removesuffix("\n").replace(f"{folder}/", "").split("\n")

    yield fail
    logging.getLogger().setLevel(logging.WARNING)
    for number, handler in handlers.items():
        signal.signal(number, handler)


ONE_LINE = {
    "nothing": ("", "agent.yaml: the file is empty"),
    "no yaml": ("models: [", "agent.yaml:1:10: "),
    "not a mapping": ("- a\n- b\n", "agent.yaml:1:1: expected"),
    "a key twice": (
        GOOD + "\nagent: {}\nagent: {}\n",
        "agent.yaml:3:1: agent: the key is repeated; first in line 2",
    ),
    "a tag of yaml": ("models: !!python/object/apply:os.system [id]\n", "agent.yaml:1:9: "),
    "an unknown key": (GOOD + "\nagnet: {}", "agent.yaml:2:1: agnet: unknown key; did you mean 'agent'?"),
    "an unknown version": (GOOD + "\nversion: 2", "agent.yaml:2:10: version: expected 1, got 2"),
    "no models": ("agent: {}", "agent.yaml:1:1: models: this key is missing"),
    "no side": ("models: {m: {}}", "agent.yaml:1:13: models.m: expected `edge`, `cloud` or both"),
    "no cloud": ("models: {m: {cloud: {model: x}}}", "agent.yaml:1:"),
    "a number without unit": (
        GOOD + "\nagent: {max_message: 64}",
        "agent.yaml:2:22: agent.max_message: expected a size",
    ),
    "no address": (GOOD + "\nagent: {listen: [here]}", "agent.yaml:2:18: agent.listen[0]: 'here' is not an address"),
    "one address twice": (
        GOOD + "\nagent: {listen: ['127.0.0.1:0', '127.0.0.1:0']}",
        "expected one or more different addresses to listen on",
    ),
    "open to the network": (
        GOOD + "\nagent: {listen: ['0.0.0.0:0']}",
        "0.0.0.0:0 can be reached from outside this machine and callers would not be authenticated",
    ),
    "cloud in clear": (
        DIGITS + "\ncloud: {endpoint: 'infer.example.com:8001'}",
        "requests to infer.example.com:8001 would cross the network in clear: give `tls`",
    ),
    "a path that is none": (GOOD + "\npolicy: missing.yaml", "missing.yaml: no such file"),
    "a model that is none": ("models: {m: {edge: {file: no.onnx}}}", "no.onnx"),
    "a bundle that is none": (
        "models: {m: {edge: {bundle: no}}}",
        "no: no such folder; expected a bundle",
    ),
    "a bundle without that runtime": (
        "models: {m: {edge: {bundle: onnx-only, runtime: tflite}}}",
        "onnx-only: bundle: no model.tflite in it; expected a folder with model.tflite",
    ),
    "no such runtime": (
        "models: {m: {edge: {file: good.onnx, runtime: torch}}}",
        "agent.yaml:1:47: models.m.edge.runtime: ",
    ),
    "the wrong runtime": (
        "models: {m: {edge: {file: good.onnx, runtime: tflite, package: ai_edge_litert}}}",
        "good.onnx",
    ),
    "a model file as a bundle": (
        "models: {m: {edge: {bundle: good.onnx}}}",
        "good.onnx: this is a model file; expected its folder, or the model file under `file`",
    ),
    "another suffix": ("models: {m: {edge: {file: agent.yaml}}}", "agent.yaml: expected a .onnx or .tflite file"),
    "a tflite package with onnx": (
        "models: {m: {edge: {file: good.onnx, runtime: onnx, package: tflite_runtime}}}",
        "`package` chooses a TFLite package",
    ),
    "a broken model": ("models: {m: {edge: {file: broken.onnx}}}", "broken.onnx"),
    "a broken description": ("models: {m: {edge: {bundle: described}}}", "described/model.yaml:1:1: "),
    "an accelerator that must be and is not": (
        "models: {m: {edge: {file: good.onnx, accelerator: {provider: qnn, require: must}}}}",
        "qnn",
    ),
    "keys that are none": (
        GOOD + "\nagent: {listen: ['127.0.0.1:0'], tls: {cert: broken.onnx, key: broken.onnx}}",
        "broken.onnx",
    ),
    "no keys": (GOOD + "\nagent: {listen: ['127.0.0.1:0'], tls: {cert: c.pem, key: k.pem}}", "c.pem: cannot read"),
    "tokens that are none": (GOOD + "\nagent: {listen: ['127.0.0.1:0'], tokens: t.yaml}", "t.yaml: no such file"),
    "a state folder that is a file": (
        GOOD + "\nagent: {state_dir: good.onnx}",
        "good.onnx: agent.state_dir: cannot be used",
    ),
    "a socket where a file is": (
        GOOD + "\nagent: {listen: ['unix:good.onnx']}",
        "cannot listen on unix:good.onnx: a file that is not a socket is in the way",
    ),
    "a socket with too long a name": (
        GOOD + f"\nagent: {{listen: ['unix:/tmp/{'x' * 120}']}}",
        "longer than 107 bytes",
    ),
    "a metrics address off loopback that is none": (
        GOOD + "\nagent: {listen: ['127.0.0.1:0'], metrics: '192.0.2.1:0'}",
        "192.0.2.1:0",
    ),
}


@pytest.mark.parametrize("what", ONE_LINE)
def test_each_mistake_is_one_line(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.chdir(folder)
    (folder / "broken.onnx").write_bytes(b"\x08nonsense")
    for name in ("onnx-only", "described"):
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes((folder / "good.onnx").read_bytes())
    (folder / "described" / "model.yaml").write_text("- a list\n")
    text, says = ONE_LINE[what]
    (said,) = run(text)
    assert says in said


POLICY_MISTAKES = {
    "a deadline without unit": ("defaults: {deadline: 100}", "policy.yaml:1:"),
    "a negative deadline": ("defaults: {deadline: -1s}", "policy.yaml:1:"),
    "a misspelt key": ("defaults: {deadlin: 1s}", "did you mean 'deadline'?"),
    "an unknown objective": ("defaults: {objective: speed}", "expected 'accuracy', 'latency', 'energy' or 'cost'"),
    "a rule that does nothing": (
        "rules: [{name: a, match: {}}]",
        "the rule does nothing; expected `egress`, `route`, `set` or `collect`",
    ),
    "an unknown zone": ("timezone: Mars/Olympus", "unknown time zone 'Mars/Olympus'; expected an IANA name"),
    "hours that are none": (
        'rules: [{name: a, match: {hours: "25:00-26:00"}, route: edge}]',
        'expected a span such as "22:00-06:00"',
    ),
    "entropy without above": ("defaults: {hard: {measure: entropy, below: 0.3}}", "measure entropy needs `above`"),
}


@pytest.mark.parametrize("what", POLICY_MISTAKES)
def test_each_mistake_of_the_policy_is_one_line(run: Run, folder: Path, what: str) -> None:
    text, says = POLICY_MISTAKES[what]
    (folder / "policy.yaml").write_text(text)
    (said,) = run(GOOD + "\npolicy: policy.yaml")
    assert said.startswith("policy.yaml:1:")
    assert says in said


def test_all_mistakes_of_a_file_are_told_at_once(run: Run) -> None:
    said = run(
        "version: 3\nagent: {listen: [x], max_requests: none}\ntypo: 1\nmodels:\n  a: {edge: {typo: 1}}\n  b: {}\n"
    )
    assert [line.split(" ")[0] for line in said] == [
        f"agent.yaml:{place}:" for place in ("1:10", "2:18", "2:36", "3:1", "5:14", "6:6")
    ]


def test_all_models_that_cannot_be_loaded_are_told_at_once(run: Run) -> None:
    said = run("models: {a: {edge: {file: a.onnx}}, b: {edge: {bundle: b}}, c: {edge: {file: c.tflite}}}")
    assert len(said) == 3
    assert all(name in line for name, line in zip(("a.onnx", "b", "c.tflite"), said, strict=True))


@pytest.mark.parametrize(
    "section", ["listen: ['127.0.0.1:{port}']", "listen: ['127.0.0.1:0'], metrics: '127.0.0.1:{port}'"]
)
def test_a_port_that_is_taken(run: Run, section: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (said,) = run(GOOD + f"\nagent: {{{section.format(port=port)}}}")
    assert str(port) in said
    assert "in use" in said


def test_a_key_that_belongs_to_another_certificate(run: Run, folder: Path) -> None:
    authority = Authority(folder)
    for name in ("one", "two"):
        authority.sign(name)
    (said,) = run(GOOD + "\nagent: {listen: ['127.0.0.1:0'], tls: {cert: one.pem, key: two.key}}")
    assert "one.pem" in said or "two.key" in said


def test_the_real_command_says_it_too(folder: Path) -> None:
    path = folder / "agent.yaml"
    path.write_text("models: {m: {edge: {file: missing.onnx}}}\nagent: {state_dir: state}\n")
    with Program(["agent", "-c", str(path)]) as program:
        assert program.wait() == EXIT_USAGE
    (line,) = (one for one in program.lines if one.startswith("error: "))
    assert "missing.onnx" in line
    assert not any("Traceback" in one for one in program.lines)


def test_a_folder_for_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["upwell", "agent", "-c", str(folder)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == EXIT_USAGE
    assert "this is a folder; expected a YAML file" in capsys.readouterr().err
