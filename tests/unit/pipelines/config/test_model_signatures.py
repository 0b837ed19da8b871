"""What a pipeline knows of the models of an `agent.yaml`: read from their descriptions, with no runtime at hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from upwell.edge.bundle.archive import write_archive
from upwell.edge.config import AgentConfig
from upwell.pipelines.config.model_signatures import SignatureFacts, signatures_of
from upwell.pipelines.run.infer_step import AnswerReader
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.signature.signature import LogicalOutput, OutputKind, Signature
from upwell.shared.tensors import Array, TensorSpec

IMAGE = "image: {kind: image}"


def described(folder: Path, outputs: str, inputs: str = IMAGE, name: str = "model.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"version: 1\nsignature:\n  inputs: {{{inputs}}}\n  outputs: {{{outputs}}}\n")
    return folder


def facts(tmp_path: Path, model: str) -> SignatureFacts:
    """What is known of the model, but for the fields of its answers."""
    return replace(all_facts(tmp_path, model), fields=None)


def all_facts(tmp_path: Path, model: str) -> SignatureFacts:
    text = f"cloud: {{endpoint: '127.0.0.1:1'}}\nagent: {{state_dir: state}}\nmodels: {{m: {{{model}}}}}\n"
    return signatures_of(parse_yaml(text, AgentConfig, tmp_path / "agent.yaml"))["m"]


def test_a_bundle_says_what_it_answers(tmp_path: Path) -> None:
    folder = described(tmp_path / "people", "boxes: {kind: detections, labels: labels.txt}")
    (folder / "labels.txt").write_text("person\nface\n")
    assert facts(tmp_path, "edge: {bundle: people}") == SignatureFacts("detections", ("person", "face"))
    has_cloud = facts(tmp_path, "edge: {bundle: people}, cloud: {model: x}")
    assert has_cloud == SignatureFacts("detections", ("person", "face"), has_cloud=True)
    assert facts(tmp_path, "edge: {bundle: people}, split: split").has_cloud


def test_an_archive_says_it_too_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    folder = described(tmp_path / "people", "boxes: {kind: detections, labels: [person, face]}")
    (folder / "manifest.json").write_text("{}")
    write_archive(tmp_path / "people.bundle.tar", folder)
    before = sorted(tmp_path.rglob("*"))
    found = facts(tmp_path, "edge: {bundle: people.bundle.tar}")
    assert found == SignatureFacts("detections", ("person", "face"))
    described(tmp_path / "people", "boxes: {kind: boxes}")
    write_archive(tmp_path / "wrong.tar", folder)
    with pytest.raises(ConfigError, match=f"^{tmp_path}/wrong.tar: signature.outputs.boxes.kind: expected"):
        facts(tmp_path, "edge: {bundle: wrong.tar}")
    (tmp_path / "wrong.tar").unlink()
    assert sorted(tmp_path.rglob("*")) == before


def test_of_several_outputs_the_boxes_count_and_then_the_classes(tmp_path: Path) -> None:
    described(tmp_path / "a", "raw: {kind: tensor}, boxes: {kind: detections, labels: [x]}, p: {kind: logits}")
    described(tmp_path / "b", "e: {kind: embedding}, l: {kind: logits}, p: {kind: probabilities, labels: [n, y]}")
    assert facts(tmp_path, "edge: {bundle: a}") == SignatureFacts("detections", ("x",))
    assert facts(tmp_path, "edge: {bundle: b}") == SignatureFacts("logits")


def test_classes_count_in_the_order_of_the_outputs_whether_they_are_logits_or_not(tmp_path: Path) -> None:
    """As `AnswerReader` takes them: the label at the top is that of the first."""
    described(tmp_path / "a", "l: {kind: logits, labels: [a, b]}, p: {kind: probabilities, labels: [n, y]}")
    assert facts(tmp_path, "edge: {bundle: a}") == SignatureFacts("logits", ("a", "b"))


ANSWERS: Mapping[OutputKind, Array] = {
    "detections": np.array([[[0, 0, 1, 1, 0.9, 0]]], np.float32),
    "probabilities": np.array([[0.2, 0.8]], np.float32),
    "logits": np.array([[0.2, 0.8]], np.float32),
    "masks": np.zeros((1, 2, 2), np.uint8),
    "segments": np.zeros((1, 2, 2, 2), np.uint8),
    "embedding": np.zeros((1, 3), np.float32),
    "tensor": np.zeros((1, 1), np.float32),
}
NUMBERS, CLASSES = ("value", "values"), ("label", "score")


@pytest.mark.parametrize(
    ("outputs", "fields"),
    [
        ({"p": "logits"}, dict.fromkeys(CLASSES, ())),
        ({"boxes": "detections"}, {"objects": ()}),
        ({"speed": "tensor"}, dict.fromkeys(NUMBERS, ())),
        ({"map": "segments"}, dict.fromkeys(NUMBERS, ())),
        ({"boxes": "detections", "shapes": "masks"}, {"boxes": ("objects",), "shapes": NUMBERS}),
        (
            {"e": "embedding", "l": "logits", "p": "probabilities"},
            {"e": NUMBERS, "label": (), "score": (), "p": CLASSES},
        ),
    ],
)
def test_the_fields_of_an_answer_are_those_that_events_write(
    tmp_path: Path, outputs: Mapping[str, OutputKind], fields: Mapping[str, Collection[str]]
) -> None:
    described(tmp_path / "a", ", ".join(f"{name}: {{kind: {kind}}}" for name, kind in outputs.items()))
    always = dict.fromkeys(("route", "reason", "id", "case"), ())
    assert all_facts(tmp_path, "edge: {bundle: a}").fields == {**fields, **always}
    logical = tuple(LogicalOutput(name, kind, TensorSpec(name, "FP32", (-1,))) for name, kind in outputs.items())
    written = AnswerReader(Signature((), logical, True)).facts({name: ANSWERS[kind] for name, kind in outputs.items()})
    assert written.keys() <= fields.keys()
    assert all(not fields[name] or set(said) <= set(fields[name]) for name, said in written.items())


@pytest.mark.parametrize(
    ("inputs", "tensor"),
    [
        ("x: {kind: tensor, dtype: FP32, shape: [4]}", ()),
        ("x: {kind: tensor, dtype: FP32, shape: [-1, 128, 3]}", (128, 3)),
        (f"{IMAGE}, other: {{kind: image}}", None),
    ],
)
def test_a_pipeline_has_one_picture_or_one_window_to_give(
    tmp_path: Path, inputs: str, tensor: tuple[int, ...] | None
) -> None:
    described(tmp_path / "a", "p: {kind: logits}", inputs)
    assert facts(tmp_path, "edge: {bundle: a}") == SignatureFacts("logits", takes_picture=False, tensor=tensor)


def test_a_bare_file_is_described_beside_it_or_has_its_own_tensors(tmp_path: Path) -> None:
    described(tmp_path, "p: {kind: embedding}", name="beside.yaml")
    assert facts(tmp_path, "edge: {file: beside.onnx}") == SignatureFacts("embedding")
    assert facts(tmp_path, "edge: {file: bare.onnx}") == SignatureFacts("tensor", takes_picture=False)


@pytest.mark.parametrize(
    "model", ["cloud: {model: x}", "edge: {updates: {source: 'https://models.example.com/x.tar'}}"]
)
def test_what_is_not_here_is_not_known(tmp_path: Path, model: str) -> None:
    assert facts(tmp_path, model) == SignatureFacts(None, takes_picture=None, has_cloud="cloud" in model)


def test_every_description_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    described(tmp_path / "a", "p: {kind: boxes}")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "model.yaml").symlink_to("/etc/hostname")
    (tmp_path / "c.tar").write_bytes(b"no archive")
    text = (
        "models: {a: {edge: {bundle: a}}, b: {edge: {bundle: b}}, c: {edge: {bundle: c.tar}}, d: {edge: {bundle: d}}}"
    )
    with pytest.raises(ConfigError) as caught:
        signatures_of(parse_yaml(text, AgentConfig, tmp_path / "agent.yaml"))
    told = [str(one).removeprefix(f"{tmp_path}/").partition(":")[0] for one in caught.value.problems]
    assert told == ["a/model.yaml", "b/model.yaml", "c.tar", "d"]
    assert "no such folder; expected a bundle" in str(caught.value)
