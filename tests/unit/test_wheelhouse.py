"""Which wheels a device takes, what a wheel says of itself, and the unit beside the wheels."""

from __future__ import annotations

import uuid
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.tags import platform_tags
from typer.testing import CliRunner

from upwell.shared.errors import ConfigError
from upwell.tools.cli import build_app
from upwell.tools.wheelhouse import cli
from upwell.tools.wheelhouse.cli import BOXES, CannotCollect, DeviceTarget

ROOT = Path(__file__).parents[2]
PI = BOXES["raspberry-pi-os-12"]


def made(folder: Path, name: str, metadata: str) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n{metadata}")
    return path


def test_the_tags_of_a_device_are_those_that_pip_itself_would_take_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packaging._manylinux._get_glibc_version", lambda: (2, 36))
    monkeypatch.setattr("packaging._manylinux._have_compatible_abi", lambda *_: True)
    monkeypatch.setattr("sysconfig.get_platform", lambda: "linux-x86_64")
    assert set(DeviceTarget("3.11", "x86_64", 36).platforms()) == set(platform_tags())


def test_markers_are_judged_for_the_device() -> None:
    assert PI.takes(Requirement("a; platform_machine == 'aarch64' and python_version == '3.11'"))
    assert not BOXES["jetpack-6"].takes(Requirement("a; python_version >= '3.11'"))
    assert not PI.takes(Requirement("a; extra == 'edge'"))
    assert PI.takes(Requirement("a; extra == 'edge'"), ["edge"])


def test_what_only_this_machine_needs_is_left_out_and_what_else_the_device_needs_is_asked_for(
    tmp_path: Path,
) -> None:
    wheels = {
        "upwell": "Requires-Dist: rt>=2; extra == 'edge'\nRequires-Dist: here; platform_machine != 'aarch64'\n",
        "rt": "Requires-Dist: old>=3; python_version == '3.11'\nRequires-Dist: helper[fast]\n",
        "helper": "Requires-Dist: quick; extra == 'fast'\nRequires-Dist: slow; extra == 'slow'\n",
        "quick": "Requires-Dist: rt\n", "here": "", "slow": "",
    }  # fmt: skip
    found = {name: cli._wheel(made(tmp_path, name, text)) for name, text in wheels.items()}
    needed, missing = cli._needed(found, ["edge"], PI)
    assert (needed, missing) == ({"upwell", "rt", "helper", "quick"}, {"old": "old>=3"})


def test_a_licence_is_taken_from_wherever_a_wheel_says_it(tmp_path: Path) -> None:
    said = {
        "one": "License-Expression: MIT OR Apache-2.0\nLicense: other\n",
        "two": "License: see file\nClassifier: License :: OSI Approved :: BSD License\n",
        "three": "License: Apache 2.0\n", "four": "License: UNKNOWN\n",
    }  # fmt: skip
    found = [cli._wheel(made(tmp_path, name, text)) for name, text in said.items()]
    assert [one.licenses for one in found] == [("MIT OR Apache-2.0",), ("BSD License",), ("Apache 2.0",), ()]
    document = cli.sbom(found, datetime(2027, 1, 31, tzinfo=timezone.utc), uuid.UUID(int=7))
    assert document["metadata"]["timestamp"] == "2027-01-31T00:00:00Z"
    assert document["components"][1]["licenses"] == [{"license": {"name": "BSD License"}}]
    assert "licenses" not in document["components"][3]


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04torn"])
def test_a_file_that_is_no_wheel_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a-1.0-py3-none-any.whl").write_bytes(data)
    with pytest.raises(CannotCollect, match=r"a-1\.0-py3-none-any\.whl"):
        cli._wheel(tmp_path / "a-1.0-py3-none-any.whl")


def test_constraints_are_those_of_the_device_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "constraints.txt"
    path.write_text("# tested\nnumpy==2.2.6; python_version < '3.11'\nnumpy==2.4.6 ; python_version >= '3.11'  # new\n")
    kept = cli._constraints(path, PI, tmp_path / "..")
    assert kept is not None
    assert kept.read_text() == "numpy==2.4.6\n"
    kept.unlink()
    path.write_text("numpy\n==2\n")
    with pytest.raises(ConfigError, match="line 2"):
        cli._constraints(path, PI, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--for", "windows"], "raspberry-pi-os-12"), (["--python", "2.7"], "from 3.10 on"),
        (["--machine", "mips"], "aarch64"), (["--extras", "edge;rm"], "commas"),
        (["--upwell", "none.whl"], "no such file"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_with_what_would_be_right(tmp_path: Path, arguments: list[str], words: str) -> None:
    line = ["release", "wheelhouse", str(tmp_path / "out"), *arguments]
    assert words in str(CliRunner().invoke(build_app(line), line).exception)
    assert not (tmp_path / "out").exists()


def test_the_unit_is_that_of_the_example_but_for_the_environment_in_use() -> None:
    example = (ROOT / "examples/deploy/systemd/upwell-agent.service").read_text()
    ours = (ROOT / "shared/upwell/tools/wheelhouse/upwell-agent.service").read_text()
    guard = "ExecStartPre=+/opt/upwell/upwell-device guard\n"
    assert ours.replace(guard, "").replace("/opt/upwell/current/bin", "/opt/upwell/bin") == example
    assert guard in ours
