"""Models that come, change, break and go while the service answers: by request, and as a watch finds them."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.unit.models_for_tests import linear, linear_weights
from upwell.cloud.config import CloudConfig
from upwell.cloud.repository.model_folders import ModelFolder
from upwell.cloud.service import model_loader
from upwell.cloud.service.cloud_service import CloudService
from upwell.cloud.service.model_loader import attempt, find_models, loader
from upwell.cloud.service.model_repository import MAX_CHANGES, ModelRepository, RepositoryWatch
from upwell.cloud.workers.worker_child import SharedRepository, trying
from upwell.cloud.workers.worker_messages import Change, Done, LoadsNow, Message
from upwell.shared.errors import ConfigError, ModelNotFound, NotAllowed, NotLoaded, Refused, Unavailable
from upwell.shared.oip.dataplane import Call, InferRequest
from upwell.shared.oip.grpc.server.triton_extensions import IndexEntry, LoadSettings, ModelState

LIMIT_S = 10.0
X = np.arange(16, dtype=np.float32).reshape(2, 8)
DESCRIPTION = """
version: 1
signature:
  inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 8]}}
  outputs: {scores: {kind: tensor}}
"""
READY, UNAVAILABLE = ModelState.READY, ModelState.UNAVAILABLE


def put(root: Path, name: str, version: int, seed: int) -> None:
    """The model of that seed, moved into place whole."""
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    linear(folder, seed).replace(folder / "model.onnx")


def spoil(root: Path, name: str, version: int) -> None:
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(b"no model")


class Scene:
    """A service over the folders of `root` with the say over them, and a watch that looks when it is told to."""

    def __init__(
        self,
        root: Path,
        control: bool = True,
        trying: Callable[[ModelFolder], AbstractContextManager[object]] = nullcontext,
        **settings: object,
    ) -> None:
        serve = {"listen": ["127.0.0.1:0"], "models": root, "repository": {"control": control, "watch": "1s"}}
        config = CloudConfig.model_validate({"version": 1, "serve": serve, **settings})
        attempts = [attempt(folder, config) for folder in find_models(config)]
        self.changes: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()
        self.service = CloudService([one.result for one in attempts])
        load = loader(config, trying=trying)
        self.repository = ModelRepository(config, self.service, attempts, self._changed, load=load)
        self.watch = RepositoryWatch(self.repository, interval_s=1)
        self.hold = threading.Event()
        self.hold.set()

    def _changed(self, name: str, ready: bool) -> None:
        self.changes.put((name, ready))
        assert self.hold.wait(LIMIT_S)

    def answer(self, model: str = "m", version: str = "") -> tuple[str, int]:
        """The version that answers, and the seed that its model was made from."""
        answer = self.service.infer(InferRequest(model, {"x": X}, version), Call())
        for seed in range(10):
            weights, bias = linear_weights(seed)
            if np.allclose(answer.outputs["scores"], X @ weights + bias, rtol=1e-4):
                return answer.version, seed
        raise AssertionError("no seed gives this answer")

    def index(self) -> dict[str, tuple[ModelState, str]]:
        return {f"{one.model}/{one.version}": (one.state, one.reason) for one in self.repository.index()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with version 1 of `m`, seed 1."""
    put(tmp_path, "m", 1, seed=1)
    return tmp_path


# --- By request


def test_a_new_version_answers_after_its_load_and_the_old_one_beside_it(root: Path) -> None:
    scene = Scene(root)
    put(root, "m", 2, seed=2)
    assert scene.answer() == ("1", 1)
    assert scene.index()["m/2"] == (UNAVAILABLE, "not loaded")
    scene.repository.load("m")
    assert scene.answer() == ("2", 2)
    assert scene.answer(version="1") == ("1", 1)
    assert scene.index() == {"m/1": (READY, ""), "m/2": (READY, "")}
    assert scene.service.metadata("m").versions == ("1", "2")


def test_a_load_takes_what_has_changed_and_leaves_the_rest_loaded(root: Path) -> None:
    put(root, "m", 2, seed=2)
    scene = Scene(root)
    first, second = scene.service.versions_by_model["m"].served
    put(root, "m", 2, seed=3)
    scene.repository.load("m")
    assert scene.answer() == ("2", 3)
    assert scene.service.versions_by_model["m"].served[0] is first
    assert scene.service.versions_by_model["m"].served[1] is not second
    with pytest.raises(Exception, match="closed"):
        second.engine.run({"x": X})


@pytest.mark.parametrize("file", ["model.yaml", "1/model.yaml", "1/deep/er/labels.txt"])
def test_every_file_of_a_model_counts_as_a_change(root: Path, file: str) -> None:
    scene = Scene(root)
    (before,) = scene.service.versions_by_model["m"].served
    scene.repository.load("m")
    assert scene.service.versions_by_model["m"].served == (before,)
    (root / "m" / file).parent.mkdir(parents=True, exist_ok=True)
    (root / "m" / file).write_text(DESCRIPTION)
    scene.repository.load("m")
    assert scene.service.versions_by_model["m"].served != (before,)


def test_a_model_that_was_not_there_at_the_start(root: Path) -> None:
    scene = Scene(root)
    put(root, "n", 7, seed=4)
    scene.repository.load("n")
    assert scene.answer("n") == ("7", 4)
    assert scene.changes.get(timeout=LIMIT_S) == ("n", True)
    assert list(scene.service.versions_by_model) == ["m", "n"]


def test_broken_new_files_of_a_version_leave_the_old_in_force_and_say_why(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(root)
    spoil(root, "m", 1)
    with pytest.raises(NotLoaded, match=r"'m' is not loaded: version 1: .*not an ONNX file.*; in force: version 1"):
        scene.repository.load("m")
    assert scene.answer() == ("1", 1)
    state, reason = scene.index()["m/1"]
    assert state is READY
    assert "the new ones are not in force" in reason
    assert "not an ONNX file" in reason
    assert "so the former ones stay in force" in caplog.text
    put(root, "m", 1, seed=5)
    scene.repository.load("m")
    assert scene.answer() == ("1", 5)
    assert scene.index() == {"m/1": (READY, "")}


@pytest.mark.parametrize("versions", ["all", "latest"])
def test_a_broken_new_version_does_not_take_the_place_of_the_old_one(root: Path, versions: str) -> None:
    scene = Scene(root, models={"m": {"versions": versions}})
    spoil(root, "m", 2)
    for _ in range(2):  # to ask again does not change it
        with pytest.raises(NotLoaded, match=r"version 2: .*; in force: version 1"):
            scene.repository.load("m")
        assert scene.answer() == ("1", 1)
    assert scene.service.ready("m")
    with pytest.raises(Unavailable, match="version 2 is not ready"):
        scene.answer(version="2")
    state, reason = scene.index()["m/2"]
    assert state is UNAVAILABLE
    assert "not an ONNX file" in reason
    put(root, "m", 2, seed=2)
    scene.repository.load("m")
    assert scene.answer() == ("2", 2)
    assert set(scene.service.versions_by_model["m"].versions) == ({"1", "2"} if versions == "all" else {"2"})


def test_a_version_whose_folder_has_gone_gives_way_to_one_that_answers_although_the_highest_is_broken(
    root: Path,
) -> None:
    scene = Scene(root)
    spoil(root, "m", 3)
    put(root, "m", 10, seed=5)
    for gone, answer in (("", ("10", 5)), ("10", ("1", 1)), ("1", ("1", 1))):  # at last nothing else would answer
        if gone:
            shutil.rmtree(root / "m" / gone)
        with pytest.raises(NotLoaded, match=f"version 3: .*; in force: version .*{answer[0]}"):
            scene.repository.load("m")
        assert scene.answer() == answer


def test_a_folder_whose_name_no_model_can_have_is_said_once_and_harms_nobody(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(root)
    shutil.copytree(root / "m", root / "m (copy)")
    for _ in range(3):
        scene.watch.look()
    assert caplog.text.count("'m (copy)' is not served: a model's name has letters") == 1
    assert scene.answer() == ("1", 1)
    assert Scene(root).answer() == ("1", 1)


def test_a_load_that_fails_leaves_the_settings_of_the_one_before(root: Path) -> None:
    scene = Scene(root)
    scene.repository.load("m", LoadSettings(max_batch=2))
    spoil(root, "m", 1)
    with pytest.raises(NotLoaded, match="in force: version 1"):
        scene.repository.load("m", LoadSettings(max_batch=8))
    put(root, "m", 1, seed=3)
    for _ in range(2):
        scene.watch.look()
    (served,) = scene.service.versions_by_model["m"].served
    assert (scene.answer(), served.settings.max_batch) == (("1", 3), 2)


def test_an_unloaded_model_says_so_and_can_be_loaded_again(root: Path) -> None:
    scene = Scene(root)
    (before,) = scene.service.versions_by_model["m"].served
    scene.repository.unload("m")
    assert scene.changes.get(timeout=LIMIT_S) == ("m", False)
    with pytest.raises(Unavailable, match="'m' version 1 is not ready: unloaded"):
        scene.answer()
    assert scene.index() == {"m/1": (UNAVAILABLE, "unloaded")}
    with pytest.raises(Exception, match="closed"):
        before.engine.run({"x": X})
    scene.repository.unload("m")
    scene.repository.load("m")
    assert scene.answer() == ("1", 1)


@pytest.mark.parametrize("name", ["n", "", "..", "../m", "m/1", ".hidden", "x" * 101, "m\0"])
def test_what_is_not_there_is_not_found(root: Path, name: str) -> None:
    scene = Scene(root)
    with pytest.raises(ModelNotFound):
        scene.repository.load(name)
    with pytest.raises(ModelNotFound, match="available: m"):
        scene.repository.unload(name)
    assert scene.answer() == ("1", 1)


def test_without_leave_nobody_changes_anything_and_may_still_look(root: Path) -> None:
    scene = Scene(root, control=False)
    put(root, "m", 2, seed=2)
    with pytest.raises(NotAllowed, match="control: true"):
        scene.repository.load("m")
    with pytest.raises(NotAllowed):
        scene.repository.unload("m")
    assert scene.answer() == ("1", 1)
    assert scene.repository.index()[0] == IndexEntry("m", "1", READY)


def test_only_a_few_changes_wait_at_a_time(root: Path) -> None:
    scene = Scene(root)
    scene.hold.clear()
    with ThreadPoolExecutor(MAX_CHANGES + 1) as pool:
        calls = [pool.submit(scene.repository.unload, "m") for _ in range(MAX_CHANGES + 1)]
        refused: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for call in calls:
            call.add_done_callback(lambda done: refused.put(done.exception()))
        assert isinstance(refused.get(timeout=LIMIT_S), Refused)
        scene.hold.set()
        assert [refused.get(timeout=LIMIT_S) for _ in range(MAX_CHANGES)] == [None] * MAX_CHANGES


def test_while_draining_nothing_is_changed_any_more(root: Path) -> None:
    scene = Scene(root)
    assert scene.service.drain(LIMIT_S)
    with pytest.raises(Unavailable, match="draining"):
        scene.repository.load("m")


# --- Versions


@pytest.mark.parametrize(
    ("versions", "served", "default"),
    [("all", ["1", "3", "10"], "10"), ("latest", ["10"], "10"), ([1, 3], ["1", "3"], "3"), ([3], ["3"], "3")],
)
def test_the_versions_that_are_asked_for_are_served(
    root: Path, versions: object, served: list[str], default: str
) -> None:
    put(root, "m", 3, seed=3)
    put(root, "m", 10, seed=4)
    for settings in ({"models": {"m": {"versions": versions}}}, {"defaults": {"versions": versions}}):
        if "defaults" in settings and isinstance(versions, list):
            continue
        scene = Scene(root, **settings)
        assert list(scene.service.versions_by_model["m"].versions) == served
        assert scene.answer()[0] == default


def test_the_latest_takes_the_place_of_the_one_before(root: Path) -> None:
    scene = Scene(root, defaults={"versions": "latest"})
    (before,) = scene.service.versions_by_model["m"].served
    put(root, "m", 2, seed=2)
    scene.repository.load("m")
    assert list(scene.service.versions_by_model["m"].versions) == ["2"]
    with pytest.raises(Exception, match="closed"):
        before.engine.run({"x": X})


def test_a_version_that_is_named_and_not_there(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    serve = {"listen": ["127.0.0.1:0"], "models": root}
    fixed = CloudConfig.model_validate({"serve": serve, "models": {"m": {"versions": [1, 4]}, "n": {}}})
    with pytest.raises(ConfigError) as caught:
        find_models(fixed)
    assert [problem.key for problem in caught.value.problems] == ["models.n", "models.m.versions"]
    assert "there is no version 4; available: 1" in str(caught.value)
    scene = Scene(root, models={"m": {"versions": [1, 4]}, "n": {}})  # they may come
    assert "there is no version 4" in caplog.text
    put(root, "m", 4, seed=4)
    scene.repository.load("m")
    assert scene.answer() == ("4", 4)


# --- As a watch finds them


def look(scene: Scene, times: int) -> None:
    for _ in range(times):
        scene.watch.look()


def test_a_change_is_taken_over_once_it_has_come_to_rest(root: Path) -> None:
    scene = Scene(root)
    look(scene, 3)
    whole = (root / "m" / "1" / "model.onnx").read_bytes()
    (root / "m" / "2").mkdir()
    target = root / "m" / "2" / "model.onnx"
    for part in range(1, 5):  # a copy under way
        target.write_bytes(whole[: len(whole) * part // 4])
        look(scene, 1)
        assert "2" not in scene.service.versions_by_model["m"].versions
    look(scene, 1)
    assert scene.answer() == ("2", 1)
    assert scene.changes.get(timeout=LIMIT_S) == ("m", True)
    look(scene, 3)
    assert scene.changes.empty()


def test_a_broken_change_is_tried_once_and_again_when_it_changes(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(root)
    look(scene, 1)
    spoil(root, "m", 1)
    look(scene, 5)
    assert scene.answer() == ("1", 1)
    assert caplog.text.count("model m version 1 is not served") == 1
    put(root, "m", 1, seed=6)
    look(scene, 2)
    assert scene.answer() == ("1", 6)


def test_the_log_names_what_has_changed_and_nothing_else(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(root)
    caplog.set_level("INFO", "upwell.cloud")
    put(root, "m", 2, seed=2)
    look(scene, 2)
    spoil(root, "m", 2)
    look(scene, 2)
    put(root, "m", 1, seed=3)
    look(scene, 2)
    served = [line.message.partition(" is served")[0] for line in caplog.records if " is served:" in line.message]
    assert served == ["model m version 2", "model m version 1"]


def test_models_come_and_go_with_their_folders(root: Path) -> None:
    scene = Scene(root)
    look(scene, 1)
    put(root, "n", 1, seed=2)
    put(root, "no name", 1, seed=3)
    look(scene, 2)
    assert scene.answer("n") == ("1", 2)
    (root / "m").rename(root / ".m")
    look(scene, 1)
    assert scene.answer() == ("1", 1)
    look(scene, 1)
    assert list(scene.service.versions_by_model) == ["n"]
    with pytest.raises(ModelNotFound):
        scene.answer()
    (root / ".m").rename(root / "m")
    look(scene, 2)
    assert scene.answer() == ("1", 1)


def test_what_was_unloaded_by_request_stays_so(root: Path) -> None:
    scene = Scene(root)
    look(scene, 1)
    scene.repository.unload("m")
    put(root, "m", 2, seed=2)
    look(scene, 3)
    assert not scene.service.ready("m")
    scene.repository.load("m")
    assert scene.answer() == ("2", 2)


def test_a_change_that_the_watch_found_before_an_unload_does_not_undo_it(root: Path) -> None:
    scene = Scene(root)
    put(root, "m", 2, seed=2)
    files = scene.repository.look()["m"]
    assert files is not None
    assert scene.repository.is_new("m", files)
    scene.repository.unload("m")  # while the watch waits for its turn
    scene.repository.take_over("m", files)
    assert not scene.service.ready("m")
    assert scene.index()["m/1"] == (UNAVAILABLE, "unloaded")


def test_a_repository_that_cannot_be_read_leaves_all_as_it_is(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(root)
    look(scene, 2)
    aside = root.with_name("aside")
    root.rename(aside)
    look(scene, 5)
    assert scene.answer() == ("1", 1)
    assert caplog.text.count("cannot be read") == 1
    assert scene.index() == {"m/1": (READY, "")}
    aside.rename(root)
    put(root, "m", 2, seed=2)
    look(scene, 2)
    assert scene.answer() == ("2", 2)


def test_requests_are_answered_while_a_model_loads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_model = model_loader.load_model
    started, go_on = threading.Event(), threading.Event()

    def held(*arguments: object) -> object:
        started.set()
        assert go_on.wait(LIMIT_S)
        return load_model(*arguments)  # type: ignore[arg-type]  # passed on as they came

    scene = Scene(root)
    put(root, "m", 2, seed=2)
    monkeypatch.setattr(model_loader, "load_model", held)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(scene.repository.load, "m")
        assert started.wait(LIMIT_S)
        assert scene.answer() == ("1", 1)
        assert scene.index() == {"m/1": (READY, ""), "m/2": (ModelState.LOADING, "")}
        assert scene.service.metadata("m").versions == ("1",)
        go_on.set()
        load.result(LIMIT_S)
    assert scene.answer() == ("2", 2)


def test_a_failure_inside_one_load_is_that_model_s_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*arguments: object) -> object:
        raise KeyError("secret")

    scene = Scene(root)
    look(scene, 1)
    put(root, "m", 1, seed=3)
    with monkeypatch.context() as patched:
        patched.setattr(model_loader, "load_model", failing)
        look(scene, 5)
        assert caplog.text.count("KeyError: 'secret'") == 1  # with its traceback, and not at every look
        with pytest.raises(NotLoaded, match="the service's log says why") as caught:
            scene.repository.load("m")
        assert "secret" not in str(caught.value)
    assert scene.answer() == ("1", 1)
    scene.repository.load("m")
    assert scene.answer() == ("1", 3)


def test_files_that_change_while_they_are_read_are_not_served(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_model = model_loader.load_model
    scene = Scene(root)

    def overtaken(*arguments: object) -> object:
        loaded = load_model(*arguments)  # type: ignore[arg-type]  # passed on as they came
        put(root, "m", 1, seed=4)
        return loaded

    put(root, "m", 1, seed=3)
    with monkeypatch.context() as patched:
        patched.setattr(model_loader, "load_model", overtaken)
        with pytest.raises(NotLoaded, match="its files changed while they were read"):
            scene.repository.load("m")
    assert scene.answer() == ("1", 1)
    look(scene, 2)
    assert scene.answer() == ("1", 4)


# --- What a worker tells its supervisor of it


def test_a_worker_says_what_it_loads_as_long_as_it_does(root: Path) -> None:
    said: queue.SimpleQueue[Message] = queue.SimpleQueue()
    scene = Scene(root, trying=partial(trying, said.put))
    changes: queue.SimpleQueue[Change] = queue.SimpleQueue()
    worker = SharedRepository(scene.repository, said.put)
    threading.Thread(target=worker.make_changes, args=[changes], daemon=True).start()
    put(root, "m", 2, seed=2)
    for change, loads in ((Change(1, "m", False), [LoadsNow("m", "2"), LoadsNow()]), (Change(2, "m", True), [])):
        changes.put(change)
        assert [said.get(timeout=LIMIT_S) for _ in loads] == loads
        done = said.get(timeout=LIMIT_S)
        assert isinstance(done, Done)
        assert done.id == change.id
