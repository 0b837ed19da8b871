"""The bounds check: models pass, models cut short do not, and nothing but `BadTfliteFile` comes out of any bytes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import flatbuffers
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.tflite_for_tests import identity, linear, two_in_two_out
from upwell.shared.formats.tflite import BadTfliteFile, read_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    directory: Path = tmp_path_factory.mktemp("models")
    return [path.read_bytes() for path in (linear(directory), two_in_two_out(directory), identity(directory, "BYTES"))]


def test_models_pass(models: list[bytes]) -> None:
    for model in models:
        read_model(model)


def test_every_cut_is_found(models: list[bytes]) -> None:
    for model in models:
        for length in range(len(model) - 4):  # the last bytes may be padding
            with pytest.raises(BadTfliteFile):
                read_model(model[:length])


@settings(deadline=None, max_examples=examples(300))
@given(data=st.data())
def test_damage_is_found_or_harmless(models: list[bytes], data: st.DataObject) -> None:
    model = bytearray(data.draw(st.sampled_from(models)))
    for _ in range(data.draw(st.integers(1, 8))):
        model[data.draw(st.integers(0, len(model) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadTfliteFile):
        read_model(bytes(model))


@settings(deadline=None, max_examples=examples(300))
@given(rest=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(rest: bytes) -> None:
    with pytest.raises(BadTfliteFile):
        read_model(rest)


@settings(deadline=None, max_examples=examples(300))
@given(start=st.binary(min_size=4, max_size=4), rest=st.binary(max_size=200))
def test_only_broken_comes_out_of_bytes_with_the_right_identifier(start: bytes, rest: bytes) -> None:
    with contextlib.suppress(BadTfliteFile):
        read_model(start + b"TFL3" + rest)


def test_a_string_needs_the_zero_that_ends_it() -> None:
    """C reads on until there is one."""
    model, code = schema.ModelT(), schema.OperatorCodeT()
    code.customCode = "abc"  # what is packed first lies at the end of the file, and this one without padding
    model.operatorCodes, model.subgraphs = [code], [schema.SubGraphT()]
    builder = flatbuffers.Builder(64)
    builder.Finish(model.Pack(builder), b"TFL3")
    data = bytes(builder.Output())
    assert data.endswith(b"abc\0")
    read_model(data)
    with pytest.raises(BadTfliteFile, match="outside the file"):
        read_model(data[:-1])
