"""Models on disk: what is found, confined and hashed."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from tests.unit.models_for_tests import branch_elsewhere
from upwell.cloud.repository.model_folders import NAMES, ModelFolder, Versions, scan, select, versions_of
from upwell.shared.errors import ConfigError, ModelFailed


def put(root: Path, *parts: str, content: bytes = b"model") -> Path:
    path = root.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_finds_versions_by_number_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    for parts in (("b", "10"), ("b", "9"), ("a", "1"), (".git", "1"), ("a", "latest"), ("a", "01"), ("a", ".2")):
        put(tmp_path, *parts, "model.onnx")
    put(tmp_path, "README")
    found = [(folder.name, folder.version) for folder in scan(tmp_path)]
    assert found == [("a", 1), ("b", 9), ("b", 10)]


def test_no_repository_and_an_empty_one_say_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder; expected a model repository"):
        scan(tmp_path / "missing")
    put(tmp_path, "model.onnx")
    with pytest.raises(ConfigError, match=r"no model here; expected <name>/<version>/model\.onnx"):
        scan(tmp_path)


@pytest.mark.parametrize("name", ["two words", "-flag", "x" * 101, "ä"])
def test_a_name_that_no_model_can_have_keeps_no_other_model_from_being_served(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, name, "1", "model.onnx")
    with pytest.raises(ConfigError, match="no model here"):
        scan(tmp_path)
    put(tmp_path, "m", "1", "model.onnx")
    caplog.clear()
    assert [folder.name for folder in scan(tmp_path)] == ["m"]
    assert caplog.messages == [f"{name!r} is not served: {NAMES}"]


def test_the_description_of_the_version_counts_before_that_of_the_model(tmp_path: Path) -> None:
    put(tmp_path, "m", "1", "model.onnx")
    assert [folder.description for folder in scan(tmp_path)] == [None]
    above = put(tmp_path, "m", "model.yaml")
    assert [folder.description for folder in scan(tmp_path)] == [above]
    beside = put(tmp_path, "m", "1", "model.yaml")
    assert [folder.description for folder in scan(tmp_path)] == [beside]


def test_a_missing_file_says_what_is_there(tmp_path: Path) -> None:
    put(tmp_path, "m", "1", "model.safetensors")
    with pytest.raises(ModelFailed, match=r"no model\.onnx in m/1; available: model\.safetensors"):
        scan(tmp_path)[0].file("model.onnx")


def test_links_may_lead_about_inside_the_repository_but_not_out_of_it(tmp_path: Path) -> None:
    secret = put(tmp_path, "secret.onnx")
    root = tmp_path / "models"
    store = put(root, ".store", "blob")
    for version, target in (("1", store), ("2", secret)):
        (root / "m" / version).mkdir(parents=True)
        (root / "m" / version / "model.onnx").symlink_to(target)
    (root / "m" / "2" / "model.yaml").symlink_to(secret)
    inside, outside = scan(root)
    assert inside.file("model.onnx").read_bytes() == b"model"
    with pytest.raises(ModelFailed, match=r"m/2/model\.onnx is a link that leads out of the repository"):
        outside.file("model.onnx")
    with pytest.raises(ModelFailed, match=r"model\.yaml is a link that leads out"):
        _ = outside.description


def test_a_model_or_version_that_is_a_link_to_nowhere_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "m", "1", "model.onnx")
    for link in ("gone", "m/2", "m/latest", ".hidden"):
        (tmp_path / link).symlink_to(tmp_path / "unmounted")
    assert [(one.name, one.version) for one in scan(tmp_path)] == [("m", 1)]
    assert caplog.messages == [f"{one} is not served: it is a link that leads nowhere" for one in ("gone", "m/2")]


@pytest.mark.parametrize("name", ["model.onnx", "model.yaml"])
def test_what_is_no_plain_file_is_refused_unread(tmp_path: Path, name: str) -> None:
    put(tmp_path, "m", "1", "other")
    folder, path = scan(tmp_path)[0], tmp_path / "m" / "1" / name

    def look() -> Path | None:
        return folder.description if name == "model.yaml" else folder.file(name)

    path.mkdir()
    with pytest.raises(ModelFailed, match=f"m/1/{name} is .* not a regular file"):
        look()
    path.rmdir()
    os.mkfifo(path)  # who reads it waits for ever
    with pytest.raises(ModelFailed, match="not a regular file"):
        look()
    path.unlink()
    for target in (name, "nowhere"):
        path.symlink_to(target)
        with pytest.raises(ModelFailed, match=f"m/1/{name} is a link that leads nowhere"):
            look()
        path.unlink()


def test_weights_of_a_program_that_are_no_plain_file_are_refused_unread(tmp_path: Path) -> None:
    program = put(tmp_path, "m", "1", "model.jax")
    os.mkfifo(program.with_suffix(".safetensors"))
    with pytest.raises(ModelFailed, match="not a regular file"):
        scan(tmp_path)[0].digest(program)


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    path = put(tmp_path, "m", "1", "model.safetensors")
    assert scan(tmp_path)[0].digest(path) == f"sha256:{hashlib.sha256(b'model').hexdigest()}"


def test_the_digest_covers_weights_in_files_of_their_own(tmp_path: Path) -> None:
    path = put(tmp_path, "m", "1", "model.onnx", content=branch_elsewhere("w.bin", inner="more/c.bin"))
    weights = put(tmp_path, "m", "1", "w.bin", content=np.ones(4, np.float32).tobytes())
    inner = put(tmp_path, "m", "1", "more", "c.bin")
    (folder,) = scan(tmp_path)
    parts = b"".join(hashlib.sha256(one.read_bytes()).digest() for one in (path, inner, weights))
    before = folder.digest(path)
    assert before == f"sha256:{hashlib.sha256(parts).hexdigest()}"
    weights.write_bytes(np.zeros(4, np.float32).tobytes())
    assert folder.digest(path) != before


@pytest.mark.parametrize("location", ["../../../secret.bin", "{root}/secret.bin", "link.bin", "sub/../../x.bin"])
def test_weights_outside_of_the_version_s_folder_are_refused_unread(tmp_path: Path, location: str) -> None:
    secret = put(tmp_path, "secret.bin")
    root = tmp_path / "models"
    put(root, "m", "x.bin")
    content = branch_elsewhere("w.bin", inner=location.format(root=tmp_path))
    path = put(root, "m", "1", "model.onnx", content=content)
    put(root, "m", "1", "w.bin")
    (root / "m" / "1" / "link.bin").symlink_to(secret)
    with pytest.raises(ModelFailed, match=r"^m/1/model\.onnx: external weights '.*' are (refused|a link to outside)"):
        scan(root)[0].digest(path)


@pytest.mark.parametrize("location", ["gone.bin", "", "w.bin\0", "x" * 300, "circle.bin"])
def test_missing_weights_are_named(tmp_path: Path, location: str) -> None:
    path = put(tmp_path, "m", "1", "model.onnx", content=branch_elsewhere("w.bin", location))
    put(tmp_path, "m", "1", "w.bin")
    (path.parent / "circle.bin").symlink_to(path.parent / "circle.bin")
    with pytest.raises(ModelFailed, match=r"^m/1/model\.onnx: external weights '.*' are missing"):
        scan(tmp_path)[0].digest(path)


@pytest.mark.parametrize("content", [b"", b"not an ONNX file at all"])
def test_what_is_no_onnx_file_has_no_digest(tmp_path: Path, content: bytes) -> None:
    path = put(tmp_path, "m", "1", "model.onnx", content=content)
    with pytest.raises(ModelFailed, match=r"^m/1/model\.onnx: (not an ONNX file|the file is empty)"):
        scan(tmp_path)[0].digest(path)


def test_what_a_version_is_made_of_is_every_file_in_its_folder_and_those_beside_it(tmp_path: Path) -> None:
    root = tmp_path / "models"
    model = put(root, "m", "1", "model.onnx")
    put(root, "m", "1", "deep", "er", "w.bin")
    labels = put(root, "m", "labels.txt")
    put(root, "m", "2", "model.onnx")
    (root / "m" / "1" / "circle").symlink_to(root / "m")
    (root / "m" / "1" / "outside").symlink_to(tmp_path)
    (root / "m" / "1" / "nowhere").symlink_to(root / "gone")
    (root / "m" / "3").symlink_to(tmp_path)
    first, _, outside = scan(root)
    before = first.files()
    assert sorted(Path(path).name for path, *_ in before) == ["labels.txt", "model.onnx", "w.bin"]
    assert outside.files() == frozenset()
    for path in (labels, model):
        put(tmp_path, "new", content=path.read_bytes()).replace(path)  # the same bytes, another file
        assert first.files() != before
        before = first.files()
    assert first.files() == before


@pytest.mark.parametrize(
    ("versions", "chosen"), [("all", [1, 2, 10]), ("latest", [10]), ((2, 10, 11), [2, 10]), ((3,), [])]
)
def test_versions_are_chosen_by_number(tmp_path: Path, versions: Versions, chosen: list[int]) -> None:
    for version in ("2", "10", "1"):
        put(tmp_path, "m", version, "model.onnx")
    assert [folder.version for folder in select(versions_of(tmp_path, "m"), versions)] == chosen
    assert select(versions_of(tmp_path, "n"), versions) == []


def test_a_folder_knows_itself(tmp_path: Path) -> None:
    put(tmp_path, "m", "3", "model.onnx")
    assert scan(tmp_path) == [ModelFolder("m", 3, tmp_path / "m" / "3", tmp_path)]
