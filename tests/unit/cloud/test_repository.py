"""Models on disk: what is found, confined and hashed."""

import contextlib
import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from upwell.cloud.repository.external import external_files
from upwell.cloud.repository.repository import ModelFolder, scan
from upwell.shared.errors import ConfigError, ModelFailed


def put(root: Path, *parts: str, content: bytes = b"model") -> Path:
    path = root.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def external(name: str, location: str) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def model_with(location: str, inner: str = "") -> bytes:
    """A model with a weight in another file, and one more inside a branch of an If."""
    info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    nodes = [helper.make_node("Identity", ["w"], ["y"])]
    if inner:
        constant = helper.make_node("Constant", [], ["c"], value=external("c", inner))
        branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, [4])])
        nodes = [helper.make_node("If", ["choice"], ["y"], then_branch=branch, else_branch=branch)]
    graph = helper.make_graph(nodes, "g", [], [info], [external("w", location)])
    return bytes(helper.make_model(graph).SerializeToString())


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
def test_a_name_that_no_model_can_have_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, "1", "model.onnx")
    with pytest.raises(ConfigError, match="a model's name is letters"):
        scan(tmp_path)


def test_the_description_of_the_version_counts_before_that_of_the_model(tmp_path: Path) -> None:
    put(tmp_path, "m", "1", "model.onnx")
    assert [folder.description for folder in scan(tmp_path)] == [None]
    above = put(tmp_path, "m", "model.yaml")
    assert [folder.description for folder in scan(tmp_path)] == [above]
    beside = put(tmp_path, "m", "1", "model.yaml")
    assert [folder.description for folder in scan(tmp_path)] == [beside]


def test_a_missing_file_says_what_is_there(tmp_path: Path) -> None:
    put(tmp_path, "m", "1", "model.safetensors")
    with pytest.raises(ModelFailed, match=r"no model\.onnx in m/1; there is model\.safetensors"):
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


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    path = put(tmp_path, "m", "1", "model.safetensors")
    assert scan(tmp_path)[0].digest(path) == f"sha256:{hashlib.sha256(b'model').hexdigest()}"


def test_the_digest_covers_weights_in_files_of_their_own(tmp_path: Path) -> None:
    path = put(tmp_path, "m", "1", "model.onnx", content=model_with("w.bin", inner="more/c.bin"))
    weights = put(tmp_path, "m", "1", "w.bin", content=np.ones(4, np.float32).tobytes())
    put(tmp_path, "m", "1", "more", "c.bin")
    (folder,) = scan(tmp_path)
    before = folder.digest(path)
    assert before != f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    weights.write_bytes(np.zeros(4, np.float32).tobytes())
    assert folder.digest(path) != before


@pytest.mark.parametrize("location", ["../../../secret.bin", "{root}/secret.bin", "link.bin", "sub/../../x.bin"])
def test_weights_outside_of_the_version_s_folder_are_refused_unread(tmp_path: Path, location: str) -> None:
    secret = put(tmp_path, "secret.bin")
    root = tmp_path / "models"
    put(root, "m", "x.bin")
    path = put(root, "m", "1", "model.onnx", content=model_with("w.bin", inner=location.format(root=tmp_path)))
    put(root, "m", "1", "w.bin")
    (root / "m" / "1" / "link.bin").symlink_to(secret)
    with pytest.raises(ModelFailed, match=r"external data '.*' of m/1 lies outside its folder"):
        scan(root)[0].digest(path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    path = put(tmp_path, "m", "1", "model.onnx", content=model_with("gone.bin"))
    with pytest.raises(ModelFailed, match=r"external data 'gone\.bin' of m/1 is missing"):
        scan(tmp_path)[0].digest(path)


def test_every_place_of_a_tensor_in_a_model_is_searched(tmp_path: Path) -> None:
    path = put(tmp_path, "model.onnx", content=model_with("outer.bin", inner="inner.bin"))
    assert external_files(path) == ("inner.bin", "outer.bin")


@pytest.mark.parametrize("content", [b"", b"not an ONNX file at all", b"\x3a\xff", b"\x3a\x05abc", b"\xff" * 20])
def test_what_is_no_onnx_file_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = put(tmp_path, "model.onnx", content=content)
    with pytest.raises(ModelFailed, match=r"model\.onnx is (not an ONNX file|empty)"):
        external_files(path)


@given(st.binary(min_size=1, max_size=200))
@settings(deadline=None, max_examples=100)
def test_any_bytes_are_walked_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = put(tmp_path_factory.getbasetemp(), "any.onnx", content=content)
    with contextlib.suppress(ModelFailed):
        assert isinstance(external_files(path), tuple)


def test_deep_nesting_is_no_recursion(tmp_path: Path) -> None:
    message = b""
    for _ in range(2000):  # graph > node > attribute > graph ...
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            size, varint = len(message), b""
            while size > 0x7F:
                varint, size = varint + bytes([size & 0x7F | 0x80]), size >> 7
            message = tag + varint + bytes([size]) + message
    assert external_files(put(tmp_path, "model.onnx", content=message)) == ()


def test_a_folder_knows_itself(tmp_path: Path) -> None:
    put(tmp_path, "m", "3", "model.onnx")
    assert scan(tmp_path) == [ModelFolder("m", 3, tmp_path / "m" / "3", tmp_path)]
