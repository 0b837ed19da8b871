"""`upwell evaluate`: two real models on cases that chance chose, with labels of people, and the gate."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.faults.bundles_for_tests import archive_of
from tests.faults.oracles import EDGE_BUNDLE, cloud_scores, edge_scores, picture, pictures
from tests.faults.releases_for_tests import Releases
from tests.integration.cases.made_cases import Made, boxes, encoded, keep
from upwell.edge.bundle.bundle import MANIFEST_NAME, entry_of, sizes_in
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest
from upwell.edge.case_collection.collected_case import CaseSignature
from upwell.shared.errors import ConfigError
from upwell.tools.cases.case_labels import Label, write_labels
from upwell.tools.cli import build_app
from upwell.tools.demo.digit_data import ASSETS, heldout

CLOUD_BUNDLE = ASSETS / "cloud" / "digits-large" / "1"
COUNT = 200
DIGITS = CaseSignature.model_validate(
    {
        "has_rows": True,
        "inputs": [{"name": "image", "kind": "image"}],
        "outputs": [{"name": "scores", "kind": "probabilities", "labels": [str(digit) for digit in range(10)]}],
    }
)


def run(*arguments: object) -> tuple[int, Any]:
    """The exit code, and what a command says with --json. Raises what it raises."""
    texts = [*map(str, arguments), "--json"]
    done = CliRunner().invoke(build_app(texts), texts)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Held-out digits as cases: every other with twice the chance, and some that chance did not choose."""
    folder = tmp_path_factory.mktemp("evaluate") / "state"
    scores = cloud_scores(pictures(range(COUNT)))
    made = [
        Made(
            picture(index), {"scores": scores[index : index + 1]}, {}, DIGITS, inclusion=(0.1, 0.2)[index % 2],
            hardness=0.5, tags={"half": "ab"[index % 2]},
        )
        for index in range(COUNT)
    ]  # fmt: skip
    mined = [Made(picture(index), {}, {}, DIGITS) for index in range(COUNT, COUNT + 20)]
    ids = keep(folder, [*made, *mined])
    write_labels(folder, {id: Label(label=str(int(heldout().labels[n]))) for n, id in enumerate(ids)})
    return folder


def weighted(right: Any) -> float:
    weights = np.where(np.arange(COUNT) % 2, 5.0, 10.0)
    return float((weights * right).sum() / weights.sum())


def test_accuracy_is_that_of_all_requests_by_class_and_by_group(state: Path) -> None:
    truth = heldout().labels[:COUNT]
    rights = [
        np.array(scores(pictures(range(COUNT))).argmax(axis=1) == truth, float)
        for scores in (edge_scores, cloud_scores)
    ]
    code, said = run("evaluate", EDGE_BUNDLE, CLOUD_BUNDLE, "--cases", state, "--group", "half")
    assert (code, said["cases"], said["measure"]) == (0, COUNT, "accuracy")
    for found, right in zip(said["quality"], rights, strict=True):
        assert found["mean"] == pytest.approx(weighted(right))
        assert found["low"] < found["mean"] < found["high"] or found["mean"] == 1.0
    assert said["difference"]["mean"] == pytest.approx(weighted(rights[1] - rights[0]))
    assert said["groups"]["a"][0]["mean"] == pytest.approx(rights[0][::2].mean())
    assert set(said["classes"]) == {str(digit) for digit in range(10)}
    assert sum(sides[0]["n"] for sides in said["classes"].values()) == COUNT
    assert 0 <= said["a"]["share_up"] < 1
    assert said["covers"] == "requests that the device kept"


def test_the_gate_opens_for_the_same_model_and_closes_for_a_worse_one(state: Path) -> None:
    same, said = run("evaluate", EDGE_BUNDLE, EDGE_BUNDLE, "--cases", state, "--gate")
    assert (same, said["passes"], said["difference"]["mean"], said["difference"]["p"]) == (0, True, 0.0, 1.0)
    better, _ = run("evaluate", EDGE_BUNDLE, CLOUD_BUNDLE, "--cases", state, "--gate")
    worse, said = run("evaluate", CLOUD_BUNDLE, EDGE_BUNDLE, "--cases", state, "--gate")
    assert (better, worse, said["passes"]) == (0, 1, False)


def test_a_few_cases_that_both_models_answer_alike_do_not_open_the_gate(tmp_path: Path) -> None:
    truth = heldout().labels[:COUNT]
    right = [scores(pictures(range(COUNT))).argmax(axis=1) == truth for scores in (edge_scores, cloud_scores)]
    numbers = np.flatnonzero(right[0] & right[1])[:5].tolist()
    ids = keep(tmp_path / "few", [Made(picture(number), {}, {}, DIGITS, inclusion=0.1) for number in numbers])
    write_labels(tmp_path / "few", {id: Label(label=str(truth[n])) for n, id in zip(numbers, ids, strict=True)})
    code, said = run("evaluate", EDGE_BUNDLE, CLOUD_BUNDLE, "--cases", tmp_path / "few", "--gate")
    assert (code, said["cases"], said["difference"]["mean"], said["passes"]) == (1, 5, 0.0, False)


def test_cases_without_a_label_and_bundles_that_are_not_there_are_said(tmp_path: Path, state: Path) -> None:
    folder = tmp_path / "other"
    keep(folder, [Made(encoded((9, 9)), {"found": boxes(random.Random(1))}, {}, inclusion=0.5)])
    with pytest.raises(ConfigError, match="none of the 1 evaluation cases has a label"):
        run("evaluate", EDGE_BUNDLE, EDGE_BUNDLE, "--cases", folder)
    with pytest.raises(ConfigError, match="there are no evaluation cases; collect some with `random`"):
        run("evaluate", EDGE_BUNDLE, EDGE_BUNDLE, "--cases", tmp_path)
    with pytest.raises(ConfigError, match="there is no such bundle"):
        run("evaluate", tmp_path / "none", EDGE_BUNDLE, "--cases", state)
    with pytest.raises(ConfigError, match="no evaluation cases of 'pages'; there are some of m"):
        run("evaluate", EDGE_BUNDLE, EDGE_BUNDLE, "--cases", state, "--model", "pages")


def test_two_releases_are_compared_with_their_own_policies_on_a_log(state: Path, tmp_path: Path) -> None:
    releases = Releases(tmp_path / "repository")
    for name, bundle, below in (("one", EDGE_BUNDLE, 0.999), ("two", CLOUD_BUNDLE, 0.0001)):
        archive = archive_of(packed(bundle, tmp_path / name), tmp_path / f"{name}.upwell")
        hard = {"measure": "max_prob", "below": below}
        policy = {"version": 1, "defaults": {"deadline": "5s", "hard": hard, "prices": {"cloud_request": 0.5}}}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(policy))
        releases.release({"m": archive}, policy=tmp_path / f"{name}.yaml")
    log = tmp_path / "log.jsonl"
    line = {"model": "m", "size_bytes": 900, "edge_s": 0.002, "cloud_s": 0.005}
    log.write_text("".join(json.dumps({"t_s": float(second), **line}) + "\n" for second in range(300)))
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"t_s": 0.0, **line, "model": "n"}) + "\n")
    link = ("--log", log, "--uplink", "20Mbps", "--rtt", "20ms")
    place = ("--releases", releases.place, "--root", releases.root)
    code, said = run("evaluate", "1", "2", "--cases", state, *place, *link, "--gate")
    assert (code, said["passes"], said["cases"]) == (0, True, COUNT)
    _, bundles = run("evaluate", EDGE_BUNDLE, CLOUD_BUNDLE, "--cases", state)
    assert said["quality"] == bundles["quality"]
    a, b = said["replay"]["a"], said["replay"]["b"]
    assert (a["requests"], a["late"], b["late"], b["sent_up"], b["cost"]) == (300, 0.0, 0.0, 0.0, 0.0)
    assert a["cost"] == pytest.approx(0.5 * 300 * a["sent_up"])
    assert 0.1 < a["sent_up"] < 1.0
    for wrong, words in (
        (("1", "9", *place), "no release 9"), (("1", "x", *place), "expected its number"),
        (("1", "2", "--releases", releases.place), "together"), (("1", "2", *link[2:]), "--log"),
        (("1", "2", *place, "--log", other, *link[2:]), "it has no request of 'm'; it has some of n"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            run("evaluate", *wrong, "--cases", state)


def packed(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle with the manifest that a release needs."""
    shutil.copytree(bundle, folder, ignore=shutil.ignore_patterns(MANIFEST_NAME))
    manifest = new_manifest("m", 1, {path: entry_of(folder / path) for path in sizes_in(folder)})
    (folder / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    return folder
