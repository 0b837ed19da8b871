"""`upwell model pack`, `sign` and `verify` as a person runs them: through the command line, on real models."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.page_reader import Reader, blocks
from tests.unit import models_for_tests as onnx_models
from tests.unit.edge.bundle.bundles import keys, passphrase
from upwell.edge.bundle.bundle_calibrations import load_calibrations
from upwell.edge.bundle.golden import read_golden
from upwell.edge.bundle.open_bundle import open_archive, open_bundle
from upwell.shared.formats.model_digest import model_digest
from upwell.tools.bundle.cli import PASSPHRASE_VARIABLE
from upwell.tools.cli import main
from upwell.tools.demo.digit_data import ASSETS

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PASSPHRASE_VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture
def upwell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `upwell model ARGUMENTS`; gives exit code, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["upwell", "model", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capfd.readouterr()
        return int(exit_.value.code or 0), out, "\n".join(line for line in err.splitlines() if "INFO" not in line)

    return run


@pytest.fixture
def digits(here: Path) -> Path:
    """The demo's model of digits: int8, as ONNX and TFLite."""
    return Path(shutil.copytree(ASSETS / "edge" / "digits", here / "digits"))


@pytest.fixture
def heldout(here: Path) -> Path:
    """Real pictures of digits, as requests to that model."""
    with np.load(ASSETS / "heldout.npz") as data:
        np.savez(here / "requests.npz", image=data["images"][:32, :, :, None])
    return here / "requests.npz"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def linear(folder: Path, seed: int, name: str) -> None:
    """A small classifier as `name` in `folder`."""
    folder.mkdir(exist_ok=True)
    shutil.move(onnx_models.linear(folder, seed), folder / name)


def test_from_a_folder_to_a_signed_file(upwell: Run, here: Path, digits: Path, heldout: Path) -> None:
    private, public = keys(here, "key")
    before = names(digits)
    code, out, err = upwell("pack", digits, "--version", 3, "--golden", heldout, "--sign", private)
    assert (code, err) == (0, "")
    assert "wrote digits-3.bundle.tar, version 3, signed by" in out
    assert "to your requests" in out
    for variant in ("model.onnx on onnxruntime", "model.tflite on ai-edge-litert"):
        assert variant in out
    assert names(digits) == before
    code, out, err = upwell("verify", "digits-3.bundle.tar", "--key", public, "--require-signature", "--newer-than", 2)
    assert (code, err) == (0, "")
    assert "digits" in out
    assert hashlib.sha256(public.read_bytes()).hexdigest() in out
    bundle = open_archive(here / "digits-3.bundle.tar", here / "opened")
    golden = read_golden(bundle.folder / "golden.npz")
    assert golden.inputs["image"].shape[0] == golden.outputs["scores"].shape[0] == 32
    assert names(here) == sorted(["digits", "digits-3.bundle.tar", "key.pem", "key.pub.pem", "opened", "requests.npz"])


@pytest.mark.parametrize(
    ("kind", "pre"),
    [("image", "[decode: image, normalize: {}, layout: NCHW]"), ("tensor, dtype: FP32, shape: [1, 3, 64, 64]", "[]")],
)
def test_a_model_that_takes_one_picture_and_has_no_rows_is_packed_with_one(
    upwell: Run, here: Path, kind: str, pre: str
) -> None:
    (here / "m").mkdir()
    shutil.move(onnx_models.identity(here, shape=(1, 3, 64, 64)), here / "m" / "model.onnx")
    signature = f"{{rows: false, inputs: {{image: {{kind: {kind}}}}}, outputs: {{y: {{kind: tensor}}}}}}"
    (here / "m" / "model.yaml").write_text(f"version: 1\nsignature: {signature}\npre: {pre}\n")
    assert upwell("pack", "m", "--version", 1, "--in-place")[::2] == (0, "")
    assert read_golden(here / "m" / "golden.npz").inputs["image"].shape[0] == 1


def test_the_same_folder_gives_the_same_file(upwell: Run, digits: Path) -> None:
    for out in ("one.tar", "two.tar"):
        assert upwell("pack", digits, "--version", 3, "--out", out)[0] == 0
    assert Path("one.tar").read_bytes() == Path("two.tar").read_bytes()


def test_in_place_the_folder_is_the_bundle(upwell: Run, here: Path, digits: Path) -> None:
    private, public = keys(here, "key")
    code, out, _ = upwell("pack", digits, "--version", 1, "--in-place", "--name", "mine", "--sign", private)
    assert code == 0
    assert "random requests" in out
    assert upwell("verify", digits, "--key", public, "--require-signature")[0] == 0
    assert open_bundle(digits).manifest is not None
    assert names(digits) == [
        "golden.npz", "labels.txt", "manifest.json", "model.onnx", "model.sig", "model.tflite", "model.yaml",
    ]  # fmt: skip
    golden = (digits / "golden.npz").read_bytes()
    code, out, _ = upwell("pack", digits, "--version", 2, "--in-place")  # without a key: the old signature is gone
    assert code == 0
    assert "as they were in the folder" in out
    assert (digits / "golden.npz").read_bytes() == golden
    assert open_bundle(digits).version == 2
    assert not (digits / "model.sig").exists()


def test_json_says_what_was_made(upwell: Run, digits: Path) -> None:
    code, out, _ = upwell("pack", digits, "--version", 3, "--json", "--package", "ai_edge_litert")
    report = json.loads(out)
    assert code == 0
    assert report["written"] == "digits-3.bundle.tar"
    assert (report["name"], report["version"], report["signed_by"]) == ("digits", 3, "")
    assert report["files"]["labels.txt"] == {
        "sha256": hashlib.sha256((digits / "labels.txt").read_bytes()).hexdigest(),
        "size_bytes": 20,
    }
    assert [check["variant"].split()[2] for check in report["checks"]] == ["onnxruntime", "ai-edge-litert"]
    document = json.loads(upwell("verify", report["written"], "--json")[1])
    assert document == {"ok": True, "name": "digits", "version": 3, "files": report["files"], "signed_by": ""} | {
        "is_signed": False
    }


def test_models_that_disagree_are_refused_by_name(upwell: Run, here: Path, digits: Path) -> None:
    assert upwell("pack", digits, "--version", 1, "--in-place")[0] == 0
    golden = digits / "golden.npz"
    with np.load(golden) as data:
        arrays: dict[str, Any] = dict(data)
    arrays["out.scores"] = np.roll(arrays["out.scores"], 1, axis=1)
    np.savez(golden, **arrays)
    code, out, err = upwell("pack", digits, "--version", 2)
    assert (code, out) == (1, "")
    assert err.startswith("refused (disagreement): these answer the golden vectors wrongly:")
    assert "model.onnx on onnxruntime" in err
    assert "model.tflite on ai-edge-litert" in err
    assert "argmax agrees in 0 of 8 rows" in err
    code, out, _ = upwell("pack", digits, "--version", 2, "--json")
    assert code == 1
    assert json.loads(out)["refusal"] == "disagreement"
    assert names(here) == ["digits"]


def test_the_one_that_is_wrong_is_named_alone(upwell: Run, here: Path) -> None:
    linear(here / "m", 0, "model.onnx")
    requests = {"x": np.random.default_rng(1).standard_normal((20, 8)).astype(np.float32)}
    np.savez("requests.npz", x=requests["x"])
    assert upwell("pack", "m", "--version", 1, "--in-place", "--golden", "requests.npz")[0] == 0
    linear(here / "m", 1, "model.onnx")
    code, _, err = upwell("pack", "m", "--version", 2, "--in-place")
    assert code == 1
    assert "model.onnx on onnxruntime" in err
    assert "relative error" in err
    assert upwell("pack", "m", "--version", 2, "--in-place", "--golden", "requests.npz")[0] == 0
    assert upwell("verify", "m", "--newer-than", 1)[0] == 0


@pytest.mark.tflite_runtime
def test_a_package_that_returns_garbage_is_named(upwell: Run, here: Path, dynamic_range_model: Path) -> None:
    (here / "m").mkdir()
    shutil.copy(dynamic_range_model, here / "m" / "model.tflite")
    code, out, err = upwell("pack", "m", "--version", 1)
    assert (code, out) == (1, "")
    assert "model.tflite on tflite-runtime 2.14.0: " in err
    assert "on ai-edge-litert" not in err
    assert "--package" in err
    assert upwell("pack", "m", "--version", 1, "--package", "ai_edge_litert")[0] == 0


def test_calibrations_of_a_policy_go_along(upwell: Run, here: Path, digits: Path) -> None:
    digest = model_digest(digits / "model.tflite")
    Path("policy.yaml").write_text(
        "version: 1\ndefaults: {hard: {measure: margin, cloud_share: 20%}}\ncalibrations:\n"
        f"- {{model: numbers, edge_digest: '{digest}', measure: margin, below: 0.25, cloud_share: 20%}}\n"
        f"- {{model: numbers, edge_digest: 'sha256:0', measure: margin, below: 0.5, cloud_share: 20%}}\n"
    )
    code, _, err = upwell("pack", digits, "--version", 3, "--calibrations", "policy.yaml")
    assert (code, err) == (0, "")
    bundle = open_archive(here / "digits-3.bundle.tar", here / "opened")
    assert [one.threshold for one in load_calibrations(bundle.folder)] == [0.25]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--version", "0"], "--version: expected a whole number from 1"),
        (["--version", "1", "--name", "../x"], "--name: expected up to 64 letters"),
        (["--version", "1", "--out", "digits/x.tar"], "is in the folder"),
        (["--version", "1", "--out", "x.tar", "--in-place"], "either --in-place or --out"),
        (["--version", "1", "--package", "torch"], "is not one of"),
        (["--version", "1", "--golden", "labels.txt"], "--golden: expected a .npz"),
        (["--version", "1", "--sign", "none.pem"], "none.pem: cannot read the key"),
        (["--version", "1", "--out", "no/x.tar"], "cannot be written"),
    ],
)
def test_wrong_use_is_said_before_anything_is_written(
    upwell: Run, here: Path, digits: Path, arguments: list[str], says: str
) -> None:
    before = names(digits)
    code, out, err = upwell("pack", "digits", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert (names(here), names(digits)) == (["digits"], before)


def test_what_is_wrong_in_the_folder_is_named_as_the_user_knows_it(upwell: Run, here: Path, digits: Path) -> None:
    (digits / "labels.txt").write_text("one\n")
    code, _, err = upwell("pack", "digits", "--version", "1")
    assert code == 2
    assert err.startswith("error: digits/model.yaml:4:")
    description = (digits / "model.yaml").read_text()
    (here / "labels.txt").write_bytes((ASSETS / "edge" / "digits" / "labels.txt").read_bytes())
    (digits / "model.yaml").write_text(description.replace("labels.txt", "../labels.txt"))
    code, _, err = upwell("pack", "digits", "--version", "1")
    assert (code, err) == (
        1,
        "refused (unconfined): digits/model.yaml: names the file '../labels.txt', which is not in the bundle",
    )
    (digits / ".hidden").touch()
    code, _, err = upwell("pack", "digits", "--version", "1")
    assert (code, names(here)) == (1, ["digits", "labels.txt"])
    assert "digits/.hidden: does not belong in a bundle: hidden files" in err


def test_an_empty_folder_has_no_model(upwell: Run, here: Path) -> None:
    (here / "empty").mkdir()
    code, _, err = upwell("pack", "empty", "--version", 1)
    assert (code, err) == (2, "error: empty: it contains no model; expected model.onnx or model.tflite")


def test_a_version_is_made_once(upwell: Run, digits: Path) -> None:
    assert upwell("pack", digits, "--version", 3)[0] == 0
    before = Path("digits-3.bundle.tar").read_bytes()
    code, _, err = upwell("pack", digits, "--version", 3)
    assert code == 2
    assert "already exists" in err
    assert Path("digits-3.bundle.tar").read_bytes() == before


def test_keys_are_rotated(upwell: Run, here: Path, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old, old_public), (new, new_public) = keys(here, "old"), keys(here, "new", encrypted=True)
    assert upwell("pack", digits, "--version", 3, "--sign", old)[0] == 0
    both = ["--key", old_public, "--key", new_public, "--require-signature"]
    file = here / "digits-3.bundle.tar"
    assert upwell("verify", file, *both)[0] == 0
    monkeypatch.setenv(PASSPHRASE_VARIABLE, passphrase())
    code, out, err = upwell("sign", file, "--key", new)
    assert (code, err) == (0, "")
    assert "; the former signature was replaced" in out
    assert upwell("verify", file, *both)[0] == 0
    code, _, err = upwell("verify", file, "--key", old_public)
    assert code == 1
    assert err.startswith("refused (wrong_signature): ")
    assert "is not trusted" in err


def test_a_passphrase_that_does_not_fit_signs_nothing(
    upwell: Run, here: Path, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, _ = keys(here, "key", encrypted=True)
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "wrong horse")
    assert upwell("pack", digits, "--version", 1, "--in-place")[0] == 0
    code, _, err = upwell("sign", digits, "--key", private)
    assert (code, err) == (2, f"error: {private}: the passphrase is wrong")
    assert not (digits / "model.sig").exists()


def test_what_is_refused_says_why(upwell: Run, here: Path, digits: Path) -> None:
    _, public = keys(here, "key")
    assert upwell("pack", digits, "--version", 3)[0] == 0
    file = here / "digits-3.bundle.tar"
    for arguments, refusal in (
        (["--require-signature", "--key", public], "unsigned"),
        (["--newer-than", "3"], "older"),
    ):
        code, out, err = upwell("verify", file, *arguments, "--json")
        assert (code, err) == (1, "")
        assert json.loads(out)["refusal"] == refusal
    os.truncate(file, 5000)
    assert json.loads(upwell("verify", file, "--json")[1])["refusal"] == "truncated"
    assert upwell("sign", file, "--key", keys(here, "other")[0])[0] == 1
    code, _, err = upwell("verify", "none.tar")
    assert (code, err) == (1, "refused (missing): none.tar: cannot be read: No such file or directory")


def test_a_folder_without_a_manifest_is_said_to_be_one(upwell: Run, here: Path, digits: Path) -> None:
    code, out, _ = upwell("verify", digits)
    assert code == 0
    assert "these files are unverified" in out
    code, _, err = upwell("sign", digits, "--key", keys(here, "key")[0])
    assert code == 2
    assert "upwell model pack" in err


def test_strange_names_reach_no_terminal(upwell: Run, here: Path) -> None:
    (here / "b").mkdir()
    (here / "b" / "manifest.json").write_text("{}")
    (here / "b" / "\x1b[2J").touch()
    code, _, err = upwell("verify", "b")
    assert code == 1
    assert "\x1b" not in err


@pytest.mark.slow
def test_the_page_does_what_it_says(here: Path, digits: Path, heldout: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "bundles.md").read_text(encoding="utf-8")
    page = "\n".join(line.removeprefix("   ") if line.startswith("   ") else line for line in page.splitlines())
    commands = [block for block in blocks(page) if block.language == "console"]
    assert len(commands) == 3
    for block in commands:
        Reader(here).do(block)
    assert names(here) == sorted(
        ["2026.pem", "2026.pub.pem", "2027.pem", "2027.pub.pem", "digits", "digits-3.bundle.tar", "requests.npz"]
    )


@pytest.fixture
def labelled(here: Path) -> Path:
    """The same pictures with what they show, as the array `digit`."""
    with np.load(ASSETS / "heldout.npz") as data:
        np.savez(here / "labelled.npz", image=data["images"][:200, :, :, None], digit=data["labels"][:200])
    return here / "labelled.npz"


def test_a_model_that_answers_its_own_questions_is_said_to(
    upwell: Run, here: Path, digits: Path, heldout: Path
) -> None:
    code, out, err = upwell("pack", digits, "--version", 1, "--golden", heldout, "--in-place")
    assert (code, "they are this model's own answers" in out) == (0, True), err
    code, out, _ = upwell("pack", digits, "--version", 2, "--in-place", "--json")  # kept, and still its own
    assert (code, json.loads(out)["golden_from_itself"]) == (0, True)


def test_what_quantizing_takes_and_writes_is_packed_or_warned_of(
    upwell: Run, here: Path, digits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with np.load(ASSETS / "heldout.npz") as data:
        np.savez("gray.npz", image=data["images"][:32])  # without a dimension for the channel
    shutil.copy(digits / "model.onnx", digits / "model.int8.onnx")
    code, _, err = upwell("pack", digits, "--version", 1, "--golden", "gray.npz", "--in-place")
    assert code == 0, err
    assert read_golden(digits / "golden.npz").inputs["image"].shape == (32, 8, 8, 1)
    assert "model.int8.onnx is included, but devices load model.onnx" in caplog.text


def test_labels_go_along_and_are_held_against_the_model_at_every_load(
    upwell: Run, here: Path, digits: Path, labelled: Path
) -> None:
    code, out, err = upwell("pack", digits, "--version", 1, "--golden", labelled, "--labels", "digit", "--in-place")
    assert code == 0, err
    assert "with labels of which 90 % must be right" in out
    assert "own answers" not in out
    labels = read_golden(digits / "golden.npz").labels
    assert labels is not None
    assert (len(labels.classes), labels.right) == (200, 0.9)
    right = ["--labels", "digit", "--right", "100%"]
    code, _, err = upwell("pack", digits, "--version", 2, "--golden", labelled, *right, "--in-place")
    assert code == 1
    assert "rows match their label, 100 % needed" in err
    with np.load(labelled) as data:
        wrong = {"image": data["image"], "digit": np.where(np.arange(200) % 2, data["digit"], (data["digit"] + 1) % 10)}
    np.savez(labelled, **wrong)  # as for a model that is right on half of them
    code, _, err = upwell("pack", digits, "--version", 2, "--golden", labelled, "--labels", "digit", "--in-place")
    assert code == 1
    assert "90 % needed" in err
    assert "say with --right how many must match" in err


def test_a_full_disk_while_packing_is_one_line_and_leaves_nothing(
    upwell: Run, here: Path, digits: Path, heldout: Path
) -> None:
    before = {path: path.read_bytes() for path in digits.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # stands for a full disk: every write beyond it fails
    try:
        code, _, err = upwell("pack", digits, "--version", 1, "--golden", heldout, "--in-place")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (code, err) == (2, f"error: {digits}: cannot be written: File too large")
    assert names(here) == ["digits", "requests.npz"]
    assert {path: path.read_bytes() for path in digits.iterdir()} == before


def test_classes_among_the_requests_are_asked_about(upwell: Run, digits: Path, labelled: Path) -> None:
    code, _, err = upwell("pack", digits, "--version", 1, "--golden", labelled)
    assert code == 2
    assert "takes image, not 'digit'; leave that array out, or add --labels digit if it holds the right classes" in err


def test_another_model_can_say_what_is_right(upwell: Run, here: Path) -> None:
    for name, seed in (("good", 0), ("same", 0), ("bad", 1)):
        linear(here / name, seed, "model.onnx")
    np.savez("requests.npz", x=np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32))
    said = ["--golden", "requests.npz", "--reference", "good", "--in-place"]
    code, out, err = upwell("pack", "same", "--version", 1, *said)
    assert code == 0, err
    assert "of good to your requests" in out
    code, _, err = upwell("pack", "bad", "--version", 1, *said)
    assert code == 1
    assert err.startswith("refused (disagreement)")
    assert "--right" not in err
    (here / "renamed").mkdir()
    shutil.move(onnx_models.identity(here), here / "renamed" / "model.onnx")
    code, _, err = upwell("pack", "bad", "--version", 2, "--golden", "requests.npz", "--reference", "renamed")
    assert code == 2
    assert "--reference: the other model does not take these requests" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--labels", "digit"], "--labels: expected --golden as well: labels refer to its requests"),
        (["--golden", "labelled.npz", "--labels", "other"], "expected an array 'other' of whole numbers"),
        (["--golden", "labelled.npz", "--labels", "image"], "expected an array 'image' of whole numbers"),
        (["--golden", "labelled.npz", "--labels", "digit", "--right", "120%"], "expected a share"),
        (["--golden", "labelled.npz", "--labels", "short"], "expected 200 whole numbers from 0 to 9"),
    ],
)
def test_labels_that_are_none_are_said(
    upwell: Run, digits: Path, labelled: Path, options: list[str], said: str
) -> None:
    with np.load(labelled) as data:
        arrays = dict(data)
    name = options[options.index("--labels") + 1]
    kept = {key: one for key, one in arrays.items() if key == "image" or key == name}
    if name == "short":
        kept["short"] = np.zeros(3, np.int64)
    np.savez(labelled, **kept)
    code, _, err = upwell("pack", digits, "--version", 1, *options)
    assert code == 2
    assert said in err


def test_a_key_that_cannot_be_read_is_said_though_there_is_no_signature(upwell: Run, digits: Path) -> None:
    code, out, err = upwell("verify", digits, "--key", "none.pem")
    assert (code, out) == (2, "")
    assert "none.pem: cannot read the key: No such file" in err


def test_packing_what_is_not_there_says_so(upwell: Run) -> None:
    code, _, err = upwell("pack", "none", "--out", "none.upwell", "--version", "1")
    assert code != 0
    assert "none: no such folder" in err
    assert "expected a bundle" not in err
