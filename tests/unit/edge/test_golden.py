"""Golden vectors: written and read back as they were, refused when damaged or hostile, and asked of a model."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.edge.agents import SURE, UNSURE, edge_model, rows_of
from upwell.edge.bundle import golden as module
from upwell.edge.bundle.golden import GoldenVectors, Labels, check_golden, compare_labels, read_golden, record_golden
from upwell.edge.bundle.output_tolerances import Tolerances
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.tensors import DTYPES, Array


def raw(value: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(value), allow_pickle=True)
    return stream.getvalue()


def archive(path: Path, members: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, data in members.items():
            made.writestr(name, data)
    return path


def same(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and (one[name] == other[name]).all()
        for name in one
    )


def arrays() -> st.SearchStrategy[Array]:
    shapes = st.lists(st.integers(0, 3), max_size=3)
    elements = st.lists(st.binary(max_size=5), min_size=27, max_size=27)

    def build(datatype: str, shape: list[int], values: list[bytes]) -> Array:
        size = int(np.prod(shape))
        if datatype == "BYTES":
            made = np.empty(size, np.object_)
            made[:] = values[:size]
        else:
            made = np.arange(size).astype(DTYPES[datatype])
        return made.reshape(shape)

    return st.builds(build, st.sampled_from(sorted(DTYPES)), shapes, elements)


NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=8)
"""An archive cannot tell of a NUL or half a surrogate pair, and no runtime names a tensor so."""


@given(
    st.dictionaries(NAMES, arrays(), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(["y", "y.bytes", "/../y", "y.npy"]), arrays(), min_size=1),
)
def test_what_is_recorded_is_read_back_and_the_same_bytes_each_time(
    tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Array], outputs: dict[str, Array]
) -> None:
    data = record_golden(lambda _: outputs, inputs)
    assert data == record_golden(lambda _: outputs, dict(reversed(inputs.items())))
    path = tmp_path_factory.mktemp("golden") / "golden.npz"
    path.write_bytes(data)
    found = read_golden(path)
    assert same(found.inputs, inputs)
    assert same(found.outputs, outputs)


def test_numpy_reads_and_writes_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "golden.npz"
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays: dict[str, Any] = {"in.x": np.asfortranarray(plain), "out.y": plain.astype(">f4")}
    np.savez_compressed(path, **arrays)
    found = read_golden(path)
    np.testing.assert_array_equal(found.inputs["x"], plain)
    assert found.outputs["y"].dtype == np.dtype(np.float32)
    np.testing.assert_array_equal(found.outputs["y"], plain)
    path.write_bytes(record_golden(lambda _: {"y": plain}, {"x": np.array([b"\xff\xd8", b""], np.object_)}))
    with np.load(path, allow_pickle=False) as read:
        assert sorted(read.files) == ["in_bytes.x", "in_ends.x", "out.y"]


@pytest.mark.parametrize("bad", [np.float32(np.nan), ml_dtypes.bfloat16(np.inf)])
def test_an_answer_that_nothing_could_match_is_not_recorded(bad: Any) -> None:
    with pytest.raises(ConfigError, match="'y' contains values that are not finite"):
        record_golden(lambda _: {"y": np.array([bad])}, {"x": np.zeros(1)})


def test_nobody_unpickles(tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return (open, (str(marker), "w"))  # type: ignore[return-value]  # a file, and the harm is done

    hostile = np.empty(1, np.object_)
    hostile[0] = Hostile()
    for data in (raw(hostile), pickle.dumps(Hostile())):
        with pytest.raises(ConfigError, match="golden vectors"):
            read_golden(archive(tmp_path / "g.npz", {"in.x.npy": data, "out.y.npy": raw([1.0])}))
    assert not marker.exists()


def bomb(path: Path) -> Path:
    """A member that says that it holds 4 GiB."""
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296,), }".ljust(
        118
    )
    return archive(path, {"in.x.npy": header, "out.y.npy": raw([1.0])})


def swollen(path: Path) -> Path:
    """A few bytes that unpack to too many."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        made.writestr("in.x.npy", b"\0" * (module.MAX_BYTES + 1))
    return path


GOOD = {"in.x.npy": raw([1.0]), "out.y.npy": raw([1.0])}
BYTES = {"in_bytes.x.npy": raw(np.zeros(3, np.uint8)), "out.y.npy": raw([1.0])}


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda path: path, "cannot be read: No such file"),
        (lambda path: path.mkdir() or path, "cannot be read: Is a directory"),
        (lambda path: path.touch() or path, "not golden vectors"),
        (lambda path: archive(path, {}), "no inputs or no outputs"),
        (lambda path: archive(path, {"in.x.npy": raw([1.0])}), "no inputs or no outputs"),
        (lambda path: archive(path, {**GOOD, "z.npy": raw([1.0])}), "arrays other than"),
        (lambda path: archive(path, {**GOOD, "in.z.npy": b"text"}), "not golden vectors"),
        (lambda path: archive(path, {**GOOD, "in.x": raw([1.0])}), "the same name"),
        (
            lambda path: archive(path, {**GOOD, "in.z.npy": raw([1.0])[:-1]}),
            "header says 8 bytes, but the file has 7",
        ),
        (lambda path: archive(path, {**GOOD, "in.z.npy": raw(["text"])}), "BYTES are stored as"),
        (lambda path: archive(path, {**GOOD, "in.z.npy": raw([1j])}), "no Open Inference Protocol datatype"),
        (lambda path: archive(path, BYTES), "without a matching in_ends.x"),
        (lambda path: archive(path, {**BYTES, "in_ends.x.npy": raw([2, 4])}), "do not match its bytes"),
        (lambda path: archive(path, {**BYTES, "in_ends.x.npy": raw([1, 2])}), "do not match its bytes"),
        (lambda path: archive(path, {**BYTES, "in_ends.x.npy": raw([2, 1, 3])}), "do not match its bytes"),
        (lambda path: archive(path, {**BYTES, "in_ends.x.npy": raw([-1, 3])}), "do not match its bytes"),
        (lambda path: archive(path, {f"in.{n}.npy": raw([1.0]) for n in range(257)}), "at most"),
        (lambda path: archive(path, {**GOOD, "label.npy": raw([1])}), "with `right` beside it"),
        (lambda path: archive(path, {**GOOD, "label.npy": raw([1.5]), "right.npy": raw([1.0])}), "not one INT64"),
        (
            lambda path: archive(path, {**GOOD, "label.npy": raw([1]), "right.npy": raw([2.0])}),
            "`right` is not a share from 0 to 1",
        ),
        (lambda path: archive(path, {**GOOD, "label.npy": raw([1]), "right.npy": raw([np.nan])}), "is not a share"),
        (bomb, "its header says 4294967296 bytes, but the file has 0"),
        (swollen, "at most"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_name(tmp_path: Path, build: Callable[[Path], Path], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_golden(build(tmp_path / "golden.npz"))
    assert str(error.value).startswith(str(tmp_path / "golden.npz"))
    assert said in str(error.value)


def test_a_file_with_any_byte_wrong_is_read_as_it_was_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "golden.npz"
    good = record_golden(lambda _: {"y": np.arange(40.0)}, {"x": np.array([b"abc", b"de"], np.object_)})
    path.write_bytes(good)
    whole = read_golden(path)
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x41]) + good[place + 1 :])
        try:
            found = read_golden(path)
        except ConfigError:
            continue
        # Dates and attributes of members may differ; their names only where nothing else is called so.
        assert {array.tobytes() for array in found.outputs.values()} == {whole.outputs["y"].tobytes()}


def test_a_model_is_asked_through_its_signature() -> None:
    edge = edge_model()
    inputs = rows_of(SURE, UNSURE)
    outputs = dict(edge.run_now(inputs).outputs)
    right = GoldenVectors(inputs, outputs)
    assert check_golden(edge.processor, edge.runtime, right, Tolerances()).passed
    turned = GoldenVectors(inputs, {**outputs, "fp64": -outputs["fp64"]})
    verdict = check_golden(edge.processor, edge.runtime, turned, Tolerances())
    assert (verdict.passed, verdict.text) == (False, "fp64: relative error 200 %, at most 5 % allowed")


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        (rows_of(SURE), {"fp32": np.zeros((1, 3), np.float32)}, "lack output 'fp64'"),
        ({"x": np.zeros((1, 3))}, dict(rows_of(SURE)), "input 'fp32' is missing"),
    ],
)
def test_golden_vectors_of_another_signature_are_not_passed(
    inputs: dict[str, Array], outputs: dict[str, Array], said: str
) -> None:
    edge = edge_model()
    verdict = check_golden(edge.processor, edge.runtime, GoldenVectors(inputs, outputs), Tolerances())
    assert (verdict.passed, said in verdict.text) == (False, True)


def test_a_model_that_fails_on_them_has_not_passed_and_recording_tells() -> None:
    edge = edge_model(failure="no power")
    golden = GoldenVectors(rows_of(SURE), rows_of(SURE))
    assert "no power" in check_golden(edge.processor, edge.runtime, golden, Tolerances()).text

    def refuse(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        raise InvalidRequest("other inputs")

    with pytest.raises(InvalidRequest, match="other inputs"):
        record_golden(refuse, rows_of(SURE))


@pytest.mark.parametrize(
    ("classes", "passed", "said"),
    [
        ([0, 0, 0], True, "3 of 3 rows match their label, 60 % needed"),
        ([0, 1, 0], True, "2 of 3 rows"),
        ([0, 1, 1], False, "fp32: 1 of 3 rows match their label, 60 % needed"),
        ([0, 0], False, "expected 3 whole numbers from 0 to 2, one for each row"),
        ([0, 0, 3], False, "expected 3 whole numbers from 0 to 2"),
        ([0, 0, -1], False, "expected 3 whole numbers from 0 to 2"),
    ],
)
def test_labels_say_what_is_right_whatever_the_model_said_before(classes: list[int], passed: bool, said: str) -> None:
    edge = edge_model()
    inputs = rows_of(SURE, UNSURE, SURE)
    golden = GoldenVectors(inputs, dict(edge.run_now(inputs).outputs), Labels(np.array(classes), 0.6))
    verdict = check_golden(edge.processor, edge.runtime, golden, Tolerances())
    assert (verdict.passed, said in verdict.text) == (passed, True), verdict.text


def test_labels_come_back(tmp_path: Path) -> None:
    path = tmp_path / "golden.npz"
    path.write_bytes(record_golden(lambda _: {"y": np.ones(2)}, {"x": np.ones(2)}, Labels(np.array([3, 0]), 0.5)))
    labels = read_golden(path).labels
    assert labels is not None
    assert (labels.classes.tolist(), labels.right) == ([3, 0], 0.5)


def test_exactly_the_share_of_labels_that_is_needed_is_enough() -> None:
    edge = edge_model()
    for right, passed in ((0.6, True), (0.61, False)):
        labels = Labels(np.array([0, 0, 0, 1, 1]), right)
        assert compare_labels(edge.signature, edge.run_now(rows_of(*[SURE] * 5)).outputs, labels).passed is passed


@pytest.mark.parametrize(("right", "rows", "needed"), [(0.56, 25, 14), (0.55, 100, 55), (0.81, 300, 243)])
def test_so_it_is_where_the_share_cannot_be_written_in_binary(right: float, rows: int, needed: int) -> None:
    edge = edge_model()
    outputs = edge.run_now(rows_of(*[SURE] * rows)).outputs
    for found in (needed, needed - 1):
        labels = Labels(np.array([0] * found + [1] * (rows - found)), right)
        assert compare_labels(edge.signature, outputs, labels).passed is (found == needed)
