"""What providers compiled, on disk: whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.models_for_tests import linear
from upwell.edge.runtimes.base import Placement
from upwell.edge.runtimes.onnx import compiled_cache
from upwell.edge.runtimes.onnx.compiled_cache import COMPILED_CACHES, CacheEntry, entry_for
from upwell.edge.runtimes.onnx.providers import OPENVINO, QNN, Provider
from upwell.edge.runtimes.runtime_options import AcceleratorOptions

PLACED = Placement("npu", 3, 2, ("nms (NonMaxSuppression)",))
MUST = AcceleratorOptions(provider="npu", require="must")
PREFER = AcceleratorOptions(provider="npu")


def entry(folder: Path, name: str = "a-1") -> CacheEntry:
    return CacheEntry(folder / name, COMPILED_CACHES[QNN])


def compile_into(one: CacheEntry, content: bytes = b"context") -> bool:
    with one.unfinished() as folder:
        (folder / "context.onnx").write_bytes(content)
        (folder / "deeper").mkdir()
        (folder / "deeper" / "weights.bin").write_bytes(b"weights")
        return one.keep(folder, PLACED)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    one = entry(tmp_path)
    assert one.kept() is None
    assert compile_into(one)
    assert one.kept() == PLACED
    assert one.context == one.folder / "context.onnx"
    assert one.context.read_bytes() == b"context"
    assert [path.name for path in tmp_path.iterdir()] == ["a-1"]


def test_what_is_kept_on_a_disk_that_became_read_only_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = entry(tmp_path)
    assert compile_into(one)

    def refuse(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "utime", refuse)
    assert one.kept() == PLACED


def overwrite(folder: Path) -> None:
    (folder / "deeper" / "weights.bin").write_bytes(b"weighty")


def remove(folder: Path) -> None:
    (folder / "deeper" / "weights.bin").unlink()


def add(folder: Path) -> None:
    (folder / "other.bin").write_bytes(b"")


def unseal(folder: Path) -> None:
    (folder / "seal.json").unlink()


def cut_seal(folder: Path) -> None:
    (folder / "seal.json").write_text((folder / "seal.json").read_text()[:20])


def other_seal(folder: Path) -> None:
    (folder / "seal.json").write_text(json.dumps([1]))


def huge_seal(folder: Path) -> None:
    os.truncate(folder / "seal.json", 1 << 23)


@pytest.mark.parametrize("damage", [overwrite, remove, add, unseal, cut_seal, other_seal, huge_seal])
def test_a_damaged_entry_is_gone(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    one = entry(tmp_path)
    compile_into(one)
    damage(one.folder)
    assert one.kept() is None
    assert not one.folder.exists()
    assert compile_into(one)
    assert one.kept() == PLACED


def test_a_compilation_that_fails_leaves_nothing(tmp_path: Path) -> None:
    one = entry(tmp_path)

    def fail() -> None:
        with one.unfinished() as folder:
            (folder / "context.onnx").write_bytes(b"half")
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []
    with one.unfinished() as folder:
        assert not one.keep(folder, PLACED)  # the provider wrote nothing
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_left_is_cleared_and_what_others_compile_is_not(tmp_path: Path) -> None:
    alive, gone = (tmp_path / f"b-1.{pid}.unfinished" for pid in (1, 2**30))
    alive.mkdir()
    gone.mkdir()
    compile_into(entry(tmp_path))
    assert alive.exists()
    assert not gone.exists()


def test_a_new_version_replaces_the_old_one_of_the_same_model(tmp_path: Path) -> None:
    for name in ("a-1", "b-1", "a-2"):
        compile_into(entry(tmp_path, name))
    assert {path.name for path in tmp_path.iterdir()} == {"b-1", "a-2"}


def test_the_longest_unused_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_cache, "_MAX_ENTRIES", 3)
    for index, name in enumerate("abc"):
        compile_into(entry(tmp_path, f"{name}-1"))
        os.utime(tmp_path / f"{name}-1", (index, index))
    assert entry(tmp_path, "a-1").kept()  # used just now
    compile_into(entry(tmp_path, "d-1"))
    assert {path.name for path in tmp_path.iterdir()} == {"a-1", "c-1", "d-1"}


def test_an_entry_is_of_one_model_provider_options_and_version(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "libnpu.so").write_bytes(b"1")
    model = linear(tmp_path)

    def name(
        path: Path = model,
        options: dict[str, str] | None = None,
        wanted: AcceleratorOptions = MUST,
        batch: int | None = None,
    ) -> str:
        found = entry_for(tmp_path, path, Provider(QNN, options or {}, library=library / "libnpu.so"), wanted, batch)
        assert found is not None
        return found.folder.name

    first = name()
    assert name() == first
    what, version = first.split("-")
    for other in (name(linear(tmp_path, 1)), name(options={"a": "1"}), name(wanted=PREFER), name(batch=1)):
        assert other.split("-") != [what, version]
        assert other.split("-")[1] == version
    (library / "libnpu.so").write_bytes(b"2")
    assert name().split("-")[0] == what
    assert name() != first
    second = name()
    (library / "libbackend.so").write_bytes(b"of another release")
    assert name() != second


def test_a_provider_that_keeps_nothing_has_no_entry(tmp_path: Path) -> None:
    model = linear(tmp_path)
    for provider in (
        Provider("DmlExecutionProvider", {}),
        Provider(OPENVINO, {}),
        Provider(OPENVINO, {"device_type": "CPU"}),
    ):
        assert entry_for(tmp_path, model, provider, MUST, None) is None
    assert entry_for(tmp_path, model, Provider(OPENVINO, {"device_type": "NPU"}), MUST, None) is not None


def test_a_provider_is_told_where(tmp_path: Path) -> None:
    tensorrt = CacheEntry(tmp_path / "a-1", COMPILED_CACHES["TensorrtExecutionProvider"])
    assert tensorrt.context is None
    assert tensorrt.settings(tmp_path) == {}
    assert tensorrt.options(tmp_path)["trt_engine_cache_path"] == str(tmp_path)
    assert tensorrt.options(tmp_path)["trt_engine_cache_enable"] == "True"
    assert entry(tmp_path).options(tmp_path) == {}
    assert entry(tmp_path).settings(tmp_path)["ep.context_file_path"] == str(tmp_path / "context.onnx")
