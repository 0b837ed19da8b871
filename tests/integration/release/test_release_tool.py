"""`upwell release`: what is drafted, signed and published, and what is said of parts that do not fit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.bundles_for_tests import Signer
from tests.faults.releases_for_tests import Releases
from tests.in_process import InProcess
from tests.page_reader import Reader, blocks
from upwell.edge.bundle.archive import write_archive
from upwell.edge.bundle.bundle import MANIFEST_NAME, entry_of, sizes_in
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest
from upwell.shared.errors import ConfigError
from upwell.shared.files import write_whole
from upwell.shared.formats.model_digest import model_digest
from upwell.tools.demo.digit_data import ASSETS
from upwell.tools.release import repository_editor

OTHER = f"sha256:{'0' * 64}"


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """The demo's model as a bundle of version 3, without the seconds that packing takes."""
    folder = Path(shutil.copytree(ASSETS / "edge" / "digits", tmp_path / "digits"))
    manifest = new_manifest("digits", 3, {path: entry_of(folder / path) for path in sizes_in(folder)})
    (folder / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    write_archive(tmp_path / "digits.bundle.tar", folder)
    return tmp_path / "digits.bundle.tar"


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "repository")


def pem(signer: Signer, folder: Path) -> Path:
    """The private key as a file."""
    path = folder / f"{signer.public.stem}.pem"
    path.write_bytes(signer.pem)
    return path


def test_from_keys_to_a_release_that_a_device_takes(in_process: InProcess, tmp_path: Path, digits: Path) -> None:
    signers = {name: Signer(tmp_path, name) for name in ("a", "b", "c", "t", "o")}
    keys = {name: pem(signer, tmp_path) for name, signer in signers.items()}
    folder, web = tmp_path / "releases", tmp_path / "www"

    def run(command: str, *arguments: object, code: int = 0) -> Any:
        done = in_process("release", command, *arguments, "--json")
        assert done.code == code, done.err
        return json.loads(done.out) if done.out else done.err

    roots = [part for name in "abc" for part in ("--root", signers[name].public)]
    started = run("init", folder, *roots, "--targets", signers["t"].public, "--online", signers["o"].public)
    assert (started["drafts"]["root"]["threshold"], started["drafts"]["root"]["signatures"]) == (2, 0)
    run("sign", folder, "--key", keys["a"])
    assert "root has 1 of 2 signatures" in run("publish", folder, "--key", keys["o"], code=2)
    run("sign", folder, "--key", keys["c"])
    run("publish", folder, "--key", keys["o"])
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nmodels: {digits: {deadline: 100ms}}\n")
    added = run("add", folder, "--bundle", digits, "--policy", policy, "--cloud", f"digits-large={OTHER}")
    assert (added["release"], added["problems"]) == (1, [])
    assert "targets has 0 of 1 signatures" in run("publish", folder, "--key", keys["o"], code=2)
    assert "does not sign" in run("sign", folder, "--key", keys["o"], code=2)
    assert run("sign", folder, "--key", keys["t"])["signed"] == ["targets"]
    assert "does not sign snapshot" in run("publish", folder, "--key", keys["t"], code=2)
    published = run("publish", folder, "--key", keys["o"], "--to", web)
    assert published["published"] == ["targets", "snapshot", "timestamp"]
    root = folder / "metadata/1.root.json"
    found = run("verify", web, "--root", root)
    assert (found["release"], found["name"], found["bundles"]) == (1, "releases", {"digits": 3})
    shown = run("show", folder)
    assert (shown["releases"], shown["drafts"], shown["roles"]["root"]["threshold"]) == ([1], {}, 2)
    assert run("show", folder, "--release", 1)["cloud"] == {"digits-large": OTHER}
    assert "there is no release 7" in run("show", folder, "--release", 7, code=2)
    again = run("add", folder, "--like", 1)
    assert again["release"] == 2
    payload = next((web / "targets/payload").iterdir())
    payload.write_bytes(payload.read_bytes()[:-1] + b"x")
    told = run("verify", web, "--root", root, code=1)
    assert (told["refusal"], "expected" in told["message"]) == ("not_fetched", True)


def test_what_does_not_fit_together_is_said_and_not_drafted(
    in_process: InProcess, tmp_path: Path, releases: Releases, digits: Path
) -> None:
    policy, pipelines = tmp_path / "policy.yaml", tmp_path / "pipelines.yaml"
    policy.write_text(
        "version: 1\n"
        "rules: [{name: stays, match: {model: faces}, egress: deny}]\n"
        "models: {pages: {deadline: 100ms}}\n"
        "calibrations:\n"
        f'- {{model: digits, edge_digest: "{OTHER}", measure: margin, below: 0.2, cloud_share: 20%}}\n'
    )
    pipelines.write_text(
        "version: 1\n"
        "pipelines:\n"
        "  dock:\n"
        "    source: {folder: pictures}\n"
        "    steps: [infer: {model: digits}, keep: {labels: [cat]}, infer: {model: nothing}]\n"
    )
    parts = ("--bundle", digits, "--policy", policy, "--pipelines", pipelines)
    done = in_process("release", "add", releases.place, *parts, "--json")
    problems = "\n".join(json.loads(done.out)["problems"])
    assert done.code == 1
    assert f"a calibration of 'digits' by margin for the model {OTHER} on the device" in problems
    assert model_digest(ASSETS / "edge/digits/model.onnx") in problems
    assert "names model 'pages', which the release does not have" in problems
    assert "names model 'faces'" in problems
    assert f"{pipelines}:5:" in problems
    assert "agent.yaml has no model 'nothing'" in problems
    assert releases.editor.drafts() == {}
    told = in_process("release", "add", releases.place, "--bundle", digits, "--policy", policy, "--also", "pages")
    assert (told.code, told.err.count("error: ")) == (1, 2)


LABELS = ["person", "car"]


def test_a_label_that_the_model_does_not_have_is_named(
    in_process: InProcess, tmp_path: Path, releases: Releases
) -> None:
    folder = tmp_path / "detector"
    folder.mkdir()
    (folder / "model.onnx").write_bytes((ASSETS / "edge/digits/model.onnx").read_bytes())
    (folder / "model.yaml").write_text(
        "version: 1\n"
        "signature:\n"
        "  inputs: {image: {kind: image}}\n"
        "  outputs: {detections: {kind: detections, labels: labels.txt}}\n"
        "pre: [{decode: image}, {resize: {to: [64, 64]}}, {normalize: {}}, {layout: NCHW}]\n"
        "post: [{boxes: {from: output0, format: cxcywh, min_score: 0.25, iou: 0.45}}]\n"
    )
    (folder / "labels.txt").write_text("\n".join(LABELS))
    manifest = new_manifest("people", 1, {path: entry_of(folder / path) for path in sizes_in(folder)})
    (folder / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    pipelines = tmp_path / "pipelines.yaml"
    pipelines.write_text(
        "version: 1\n"
        "pipelines: {dock: {source: {folder: p}, steps: [infer: {model: people}, keep: {labels: [forklift]}]}}\n"
    )
    done = in_process("release", "add", releases.place, "--bundle", folder, "--pipelines", pipelines)
    assert "forklift" in done.err
    assert done.code == 1, done.err


def test_a_rule_that_keeps_data_here_is_not_lost_by_accident(
    in_process: InProcess, tmp_path: Path, releases: Releases, digits: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules: [{name: private, match: {tags: {room: ward}}, egress: deny}]\n")
    releases.release({"digits": digits}, policy=policy)
    policy.write_text("version: 1\n")
    done = in_process("release", "add", releases.place, "--like", 1, "--policy", policy)
    assert done.code == 1
    assert "without 'private'" in done.err
    replaces = done.err.partition("write `replaces: ")[2].partition("`")[0]
    policy.write_text(f"version: 1\nreplaces: {replaces}\n")
    assert in_process("release", "add", releases.place, "--like", 1, "--policy", policy).code == 0


def test_a_log_shows_what_the_policy_changes(
    in_process: InProcess, tmp_path: Path, releases: Releases, digits: Path
) -> None:
    log = tmp_path / "log.jsonl"
    made = [sys.executable, "examples/routing/make_log.py", "--out", str(log), "--seconds", "40", "--seed", "1"]
    subprocess.run(made, check=True, cwd=Path(__file__).parents[3], capture_output=True)
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text("version: 1\ndefaults: {deadline: 500ms, hard: {measure: margin, below: 0.1}}\n")
    after.write_text("version: 1\ndefaults: {deadline: 500ms, hard: {measure: margin, below: 0.6}}\n")
    releases.release({"photos": digits}, policy=before)
    done = in_process("release", "add", releases.place, "--like", 1, "--policy", after, "--log", log, "--json")
    simulated = json.loads(done.out)["simulated"]
    assert simulated["before"]["requests"] == simulated["after"]["requests"] == 200
    assert simulated["after"]["cloud_share"] > simulated["before"]["cloud_share"] + 0.2
    assert simulated["after"]["cost"] >= simulated["before"]["cost"]


def test_a_publish_that_is_killed_leaves_what_was_there_and_can_be_repeated(
    tmp_path: Path, releases: Releases, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each file that it writes in turn the process ends; devices see the old or the new whole, never between."""
    releases.release({"digits": digits})
    policy = tmp_path / "policy.yaml"
    was = (releases.editor.metadata / "timestamp.json").read_bytes()
    at = 0
    while True:
        policy.write_text(f"version: 1\ndefaults: {{deadline: {at + 1}s}}\n")
        releases.draft(like=1, policy=policy)
        count = 0

        def failing(path: Path, data: bytes, mode: int | None = None) -> None:
            nonlocal count
            count += 1
            if count > at:  # noqa: B023  called within the loop
                raise OSError(28, os.strerror(28))
            write_whole(path, data, mode)

        with monkeypatch.context() as patch:
            patch.setattr(repository_editor, "write_whole", failing)
            with contextlib.suppress(ConfigError):
                releases.publish()
                break
        assert (releases.editor.metadata / "timestamp.json").read_bytes() == was
        at += 1
    assert at == 3  # targets, snapshot, timestamp
    assert (releases.editor.metadata / "timestamp.json").read_bytes() != was


def test_the_online_key_must_not_be_an_offline_one(tmp_path: Path, in_process: InProcess) -> None:
    one = Signer(tmp_path, "one")
    done = in_process(
        "release", "init", tmp_path / "releases", "--root", one.public, "--targets", one.public, "--online", one.public
    )
    assert done.code == 2
    assert "could sign releases with it" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cloud", "digits-large=1"), "--cloud: expected MODEL=sha256: and 64 hexadecimal digits, got '1'"),
        (("--cloud", "digits-large"), "--cloud: expected KEY=VALUE"),
        (("--name", "a b"), "--name: expected up to 64 letters, digits"),
        (("--like", "7"), "there is no release yet"),
        (("--bundle", "nothere.tar"), "nothere.tar: cannot be read"),
        (("--back-within", "1"), "--back-within: "),
        (("--days", "1e9"), "expected a number of days that ends before the year 10000, got 1e+09"),
    ],
)
def test_wrong_use_is_one_sentence_and_leaves_nothing(
    in_process: InProcess, releases: Releases, digits: Path, arguments: tuple[str, str], said: str
) -> None:
    done = in_process("release", "add", releases.place, "--bundle", f"digits={digits}", *arguments)
    assert done.code in (1, 2)
    assert said in done.err
    assert "Traceback" not in done.err
    assert not releases.editor.draft.exists()


def test_nothing_is_drafted_where_there_is_no_root(in_process: InProcess, tmp_path: Path, digits: Path) -> None:
    done = in_process("release", "add", tmp_path / "empty", "--bundle", digits)
    assert done.code == 2
    assert "this is not a release repository; create one with `upwell release init`" in done.err
    assert not (tmp_path / "empty").exists()


@pytest.mark.slow
def test_a_reader_of_the_page_comes_from_keys_to_a_device_s_release_and_replaces_a_lost_key(
    tmp_path: Path, digits: Path
) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    digits.rename(folder / "digits-3.bundle.tar")
    (folder / "policy.yaml").write_text("version: 1\n")
    page = (Path(__file__).parents[3] / "docs/releases.md").read_text(encoding="utf-8")
    told = [block for block in blocks(page) if block.language in ("sh", "console")]
    assert len(told) == 4
    for block in told:
        Reader(folder).do(block)
    assert {path.name for path in (folder / "stick/metadata").glob("*.root.json")} == {"1.root.json", "2.root.json"}
