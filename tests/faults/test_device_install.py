"""The agent put on a machine without a network from a stick, upgraded on trial, gone back, and removed again."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.faults.device_box import STICK, Box, booted
from tests.unit.models_for_tests import linear
from upwell.tools.wheelhouse.cli import SBOM, SCRIPT

ROOT = Path(__file__).parents[2]
AGENT = """
version: 1
agent: {name: box-1, listen: ["127.0.0.1:8002", "unix:/run/upwell-agent/agent.sock"], state_dir: /var/lib/upwell-agent,
        metrics: "127.0.0.1:9464"}
fleet: {endpoint: "https://127.0.0.1:4320", ca: fleet-ca.pem, enrol_token_file: enrol-token, every: 1s}
models: {small: {edge: {file: model.onnx}}}
"""
LIMIT_S = 300.0
"""For what takes seconds where nothing else runs: an installation reads and compiles thousands of files."""
T = TypeVar("T")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def upwell(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "upwell.tools.entry", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def stick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is carried to the device: the wheels, the fleet's files and the settings, made with the real commands."""
    folder = tmp_path_factory.mktemp("stick")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder / "own"), str(ROOT)],
        check=True,
    )
    (wheel,) = (folder / "own").glob("upwell-*.whl")
    upwell(
        "release", "wheelhouse", str(folder / "wheels"), "--upwell", str(wheel), "--extras", "onnx,bundle",
        "--constraint", str(ROOT / "constraints.txt"), "--for", "debian-12",
    )  # fmt: skip
    (folder / "fleet").mkdir()
    (folder / "fleet" / "fleet.yaml").write_text("version: 1\nfleet: {listen: ['127.0.0.1:4320'], poll: 1s}\n")
    token = upwell("fleet", "user", "add", "ann", "--role", "operator", "-c", str(folder / "fleet" / "fleet.yaml"))
    (folder / "fleet" / "token").write_text(token.strip())
    (folder / "settings").mkdir()
    linear(folder / "settings").rename(folder / "settings" / "model.onnx")
    (folder / "settings" / "agent.yaml").write_text(AGENT)
    return folder


@pytest.fixture
def box(tmp_path: Path, stick: Path) -> Iterator[Box]:
    (stick / "before").touch()
    time.sleep(1.1)
    with booted(tmp_path / "box", stick) as running:
        yield running


def device(box: Box, wheels: str, *words: str) -> tuple[int, str]:
    """The script of that folder of wheels."""
    done = box.run(f"{STICK}/{wheels}/{SCRIPT}", *words)
    return done.returncode, done.stdout + done.stderr


def another(stick: Path, name: str, version: str, change: Callable[[str, bytes], bytes]) -> None:
    """A folder of wheels with another version of Upwell, of which each file is as `change` makes it."""
    folder = stick / name
    shutil.copytree(stick / "wheels", folder, copy_function=lambda source, to: Path(to).hardlink_to(source))
    (old,) = folder.glob("upwell-*.whl")
    former = old.name.split("-")[1]
    new = folder / old.name.replace(former, version, 1)
    with zipfile.ZipFile(old) as source, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename.endswith(".dist-info/METADATA"):
                data = data.replace(f"Version: {former}".encode(), f"Version: {version}".encode(), 1)
            path = entry.filename.replace(f"upwell-{former}.dist-info", f"upwell-{version}.dist-info")
            target.writestr(path, change(entry.filename, data))
    old.unlink()
    (listed,) = folder.glob("requirements-*.txt")
    digest = hashlib.sha256(new.read_bytes()).hexdigest()
    text = re.sub(r"upwell==\S+ --hash=\S+", f"upwell=={version} --hash=sha256:{digest}", listed.read_text())
    listed.unlink()
    listed.write_text(text)


def breaking(place: str, line: str) -> Callable[[str, bytes], bytes]:
    return lambda path, data: data + f"\n{line}\n".encode() if path.endswith(place) else data


def answers(box: Box) -> str:
    """What the agent says of itself over its socket and its page."""
    script = "import json, urllib.request as u; print(json.load(u.urlopen('http://127.0.0.1:9464/health'))['status'])"
    return box.done("/opt/upwell/current/bin/python", "-c", script).strip()


def version_of(box: Box) -> str:
    return box.done("/opt/upwell/current/bin/upwell", "--version").split()[-1]


def test_a_stick_puts_it_on_the_device_and_removal_leaves_nothing(box: Box, stick: Path) -> None:
    fleet = subprocess.Popen(
        ["nsenter", "--target", str(box.pid), "--net", sys.executable, "-m", "upwell.tools.entry", "fleet", "serve",
         "-c", str(stick / "fleet" / "fleet.yaml")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        ca = stick / "fleet" / "fleet-ca.pem"
        within(lambda: ca.exists())
        into = ("nsenter", "--target", str(box.pid), "--net", sys.executable, "-m", "upwell.tools.entry", "fleet")
        options = ("--at", "https://127.0.0.1:4320", "--ca", str(ca), "--token-file", str(stick / "fleet" / "token"))
        made = within(lambda: said(*into, "token", "add", *options))
        (stick / "settings" / "enrol-token").write_text(made.strip().splitlines()[-1])
        shutil.copy(ca, stick / "settings" / "fleet-ca.pem")
        before = box.files()
        code, text = device(box, "wheels", "install", f"{STICK}/settings")
        assert code == 0, text
        assert "upwell-agent.service" in text
        assert box.done("systemctl", "is-enabled", "upwell-agent").strip() == "enabled"
        assert box.done("stat", "-c", "%U:%G %a", "/etc/upwell-agent/agent.yaml").strip() == "root:upwell-agent 640"
        assert box.done("ps", "-o", "user=", "-C", "upwell").split() == ["upwell-agent"] or "upwell-a" in box.done(
            "ps", "-eo", "user,args"
        )
        assert answers(box) == "ok"
        shown = within(lambda: found_in(said(*into, "devices", "--json", *options), "box-1"))
        assert shown is not None
        assert shown["healthy"] is True
        assert "it has enrolled" in device(box, "wheels", "status")[1]
        assert device(box, "wheels", "install", f"{STICK}/settings")[0] == 1, "not twice"
        assert device(box, "wheels", "remove") == (0, "")
        assert box.files() == before
        assert "upwell" not in box.done("ps", "-eo", "args") + box.done("systemctl", "list-unit-files")
    finally:
        fleet.terminate()
        fleet.wait(LIMIT_S)


def test_an_upgrade_is_on_trial_and_a_bad_one_goes_back_by_itself(box: Box, stick: Path) -> None:
    (stick / "settings" / "enrol-token").write_text("none")
    (stick / "settings" / "fleet-ca.pem").write_bytes((stick / "fleet" / "fleet-ca.pem").read_bytes())
    assert device(box, "wheels", "install", f"{STICK}/settings")[0] == 0
    first = version_of(box)
    another(stick, "dead", "9.0.1", breaking("upwell/edge/server/agent_assembly.py", "raise RuntimeError('broken')"))
    late = "import os, threading; threading.Timer(4.0, os._exit, (3,)).start()"
    another(stick, "dies", "9.0.2", breaking("upwell/edge/server/agent_assembly.py", late))
    another(stick, "good", "9.0.3", lambda _, data: data)
    for wheels in ("dead", "dies"):
        code, text = device(box, wheels, "upgrade", "--trial", "8")
        assert (code, "is abandoned" in text) == (1, True), text
        assert (version_of(box), answers(box)) == (first, "ok")
    code, text = device(box, "good", "upgrade", "--trial", "3")
    assert (code, version_of(box), answers(box)) == (0, "9.0.3", "ok"), text
    (stick / "torn").mkdir()
    shutil.copytree(stick / "good", stick / "torn", dirs_exist_ok=True)
    (wheel,) = (stick / "torn").glob("numpy-*.whl")
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    code, text = device(box, "torn", "upgrade")
    assert (code, version_of(box), answers(box)) == (1, "9.0.3", "ok")
    assert "HASH" in text.upper()
    assert device(box, "wheels", "remove")[0] == 0


def test_an_upgrade_that_is_killed_amid_its_trial_is_left_after_a_few_starts(box: Box, stick: Path) -> None:
    (stick / "settings" / "enrol-token").write_text("none")
    (stick / "settings" / "fleet-ca.pem").write_bytes((stick / "fleet" / "fleet-ca.pem").read_bytes())
    assert device(box, "wheels", "install", f"{STICK}/settings")[0] == 0
    first = version_of(box)
    if not (stick / "dying").exists():
        line = "import os, threading; threading.Timer(1.0, os._exit, (3,)).start()"
        another(stick, "dying", "9.0.4", breaking("upwell/edge/server/agent_assembly.py", line))
    kill_amid_trial(box, "dying", 600)
    within(lambda: box.run("test", "-e", "/opt/upwell/trial.json").returncode != 0)
    within(lambda: box.run("systemctl", "is-active", "upwell-agent").returncode == 0)
    assert (version_of(box), answers(box)) == (first, "ok")
    another(stick, "healthy", "9.0.5", lambda _, data: data)
    kill_amid_trial(box, "healthy", 8)
    within(lambda: box.run("test", "-e", "/opt/upwell/trial.json").returncode != 0)
    for _ in range(4):
        box.done("systemctl", "restart", "upwell-agent")
    assert (version_of(box), answers(box)) == ("9.0.5", "ok")


def kill_amid_trial(box: Box, wheels: str, trial_s: int) -> None:
    """Kill an upgrade that has started the other version."""
    upgrading = subprocess.Popen(box.enter(f"{STICK}/{wheels}/{SCRIPT}", "upgrade", "--trial", str(trial_s)))
    try:
        within(lambda: box.run("grep", "-q", "starts.: [1-9]", "/opt/upwell/trial.json").returncode == 0)
        box.done("pkill", "-KILL", "-f", "upwell-device upgrade")
        upgrading.wait(LIMIT_S)
    finally:
        upgrading.kill()
        upgrading.wait()


def test_what_does_not_fit_is_said_and_leaves_nothing(box: Box, stick: Path) -> None:
    before = box.files()
    code, text = device(box, "wheels", "install", STICK)
    assert (code, "has no agent.yaml" in text) == (1, True)
    code, text = device(box, "wheels", "upgrade")
    assert (code, "expected `install` first" in text) == (1, True)
    (stick / "wrong").mkdir()
    (stick / "wrong" / "agent.yaml").write_text("version: 1\nmodels: {small: {edge: {fil: model.onnx}}}\n")
    code, text = device(box, "wheels", "install", f"{STICK}/wrong")
    assert (code, "fil" in text, "removed" in text) == (1, True, True), text
    assert box.files() == before
    other = stick / "other"
    other.mkdir()
    shutil.copy2(stick / "wheels" / SCRIPT, other)
    (other / "requirements-cp313-aarch64.txt").touch()
    code, text = device(box, "other", "install", f"{STICK}/settings")
    assert (code, "requirements-cp311-" in text, "requirements-cp313-aarch64.txt" in text) == (1, True, True), text
    assert box.files() == before


def test_the_sbom_names_every_wheel_with_its_digest_and_licence(stick: Path) -> None:
    document = json.loads((stick / "wheels" / SBOM).read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    digests = {one["bom-ref"]: one["hashes"][0]["content"] for one in document["components"]}
    wheels = (stick / "wheels").glob("*.whl")
    assert digests == {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in wheels}
    licences = {one["name"]: one.get("licenses") for one in document["components"]}
    assert licences["upwell"] == [{"license": {"name": "Apache-2.0"}}]
    assert all(licences.values()), licences


def said(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def found_in(text: str, name: str) -> dict[str, object] | None:
    listed = json.loads(text)["devices"] if text else []
    return next((one for one in listed if one["name"] == name and one["healthy"] is not None), None)


def within(ask: Callable[[], T]) -> T:
    until_s = time.monotonic() + LIMIT_S
    while not (found := ask()):
        assert time.monotonic() < until_s
        time.sleep(0.3)
    return found
