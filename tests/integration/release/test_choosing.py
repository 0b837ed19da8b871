"""What may be chosen among signed releases, and what a device refuses whoever signed it: a real agent, in process."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.faults.bundles_for_tests import archive_of
from tests.faults.releases_for_tests import Releases
from tests.faults.scene import until
from tests.integration.agent.versions import APPEARS_S, EASY, INPUT, MODEL, Publisher, rows, version_of
from tests.integration.release.devices import policy_file, write_device
from tests.unit.models_for_tests import save, tensor
from upwell.edge.bundle.bundle import MANIFEST_NAME, entry_of, sizes_in
from upwell.edge.bundle.manifest import manifest_bytes, new_manifest
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.updates.releases.release_control import ReleaseControl

WARD = "rules: [{name: ward, match: {tags: {room: ward}}, egress: deny}]\n"


class Device:
    """An agent in this process that follows releases."""

    def __init__(self, agent: AgentCore) -> None:
        self.agent = agent
        assert agent.release is not None
        self.release: ReleaseControl = agent.release

    @property
    def answers(self) -> int:
        """The version that answers now."""
        return version_of(self.agent.infer(MODEL, rows(EASY)).outputs, EASY)

    def comes_to(self, phase: str, sequence: int) -> str:
        """Wait until it is in this phase with this release; the reason."""

        def is_there() -> bool:
            status = self.release.status()
            return (status.phase, status.sequence) == (phase, sequence)

        until(is_there, APPEARS_S)
        return self.release.status().reason

    def proves(self) -> None:
        """Answer until the release on trial has proven itself."""

        def is_proven() -> bool:
            for number in range(50):
                self.agent.infer(MODEL, rows(EASY + number / 64))
            return self.release.status().phase == "serving"

        until(is_proven, 3 * APPEARS_S)


@contextmanager
def running(config: Path) -> Iterator[Device]:
    """The device, until the end of the block."""
    with embedded_agent(config) as agent:
        yield Device(agent)


def slow_bundle(folder: Path, version: int) -> Path:
    """The model of versions, which takes some hundred milliseconds longer for the same answer."""
    made = folder / f"slow-{version}"
    made.mkdir()
    constants = {
        "version": np.full((1, 3), version, np.float32),
        "matrix": np.eye(768, dtype=np.float32),
        "zero": np.zeros((), np.float32),
    }
    names = [f"h{layer}" for layer in range(40)]
    nodes = [
        helper.make_node("ReduceMean", [INPUT], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["matrix", "nothing"], [names[0]]),
        *(helper.make_node("MatMul", [before, "matrix"], [after]) for before, after in itertools.pairwise(names)),
        helper.make_node("ReduceMean", [names[-1]], ["last"], keepdims=0),
        helper.make_node("Mul", ["last", "zero"], ["still_nothing"]),
        helper.make_node("Add", [INPUT, "version"], ["sum"]),
        helper.make_node("Add", ["sum", "still_nothing"], ["scores"]),
    ]
    save(made / "model.onnx", nodes, [tensor(INPUT, ["rows", 3])], [tensor("scores", ["rows", 3])], constants)
    manifest = new_manifest(MODEL, version, {path: entry_of(made / path) for path in sizes_in(made)})
    (made / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    return archive_of(made, folder / f"slow-{version}.bundle.tar")


def test_the_chosen_release_is_taken_and_no_other(folder: Path, publisher: Publisher, releases: Releases) -> None:
    for version in (3, 4, 5):
        releases.release({MODEL: publisher.bundle(version)})
    config = write_device(folder, releases, publisher.bundle(2))
    (folder / "state/release").mkdir(parents=True)
    (folder / "state/release/choice.json").write_text(json.dumps({"sequence": 0}))
    with running(config) as device:
        assert (device.release.status().sequence, device.answers) == (0, 2)
        device.release.choose(2)
        device.comes_to("trial", 2)
        until(lambda: device.answers == 4, APPEARS_S)
        device.release.choose(9)
        until(lambda: "release 9 is not there yet" in device.release.status().reason, APPEARS_S)
        device.release.choose(None)
        device.comes_to("trial", 3)
        until(lambda: device.answers == 5, APPEARS_S)
        digest = device.release.status().digest
    with running(config) as device:  # and the choice outlived it
        assert (device.release.status().sequence, device.release.status().digest) == (3, digest)


@pytest.mark.slow
def test_who_chooses_may_send_a_device_back_by_one_release_while_that_is_allowed(
    folder: Path, publisher: Publisher, releases: Releases
) -> None:
    for version in (3, 4):
        releases.release({MODEL: publisher.bundle(version)}, policy=policy_file(folder))
    config = write_device(folder, releases, publisher.bundle(2))
    with running(config) as device:
        device.comes_to("trial", 2)
        until(lambda: device.answers == 4, APPEARS_S)
        device.release.choose(0)  # what was served before is what agent.yaml names
        assert not device.comes_to("serving", 0)  # it was chosen: nothing is wrong
        assert device.answers == 2
        device.release.choose(None)
        until(lambda: "release 2 was rolled back" in device.release.status().reason, APPEARS_S)
        device.release.choose(2)
        device.comes_to("trial", 2)
        until(lambda: device.answers == 4, APPEARS_S)
        device.release.choose(None)
        first = releases.release({MODEL: publisher.bundle(5)})
        device.comes_to("trial", first)
        device.proves()
        second = releases.release({MODEL: publisher.bundle(6)})
        device.comes_to("trial", second)
        device.proves()
        device.release.choose(first)
        device.comes_to("serving", first)
        until(lambda: device.answers == 5, APPEARS_S)
        device.release.choose(0)  # a second step back
        device.comes_to("refused", first)
        device.release.choose(1)  # not the one before, and older
        assert "is older than release" in device.comes_to("refused", first)


@pytest.mark.parametrize("has_bundle", [False, True])
def test_the_first_choice_may_be_older_than_what_the_device_took_before_it_knew_that(
    folder: Path, publisher: Publisher, releases: Releases, has_bundle: bool
) -> None:
    for version in (3, 4):
        releases.release({MODEL: publisher.bundle(version)})
    config = write_device(folder, releases, publisher.bundle(2) if has_bundle else None)
    with running(config) as device:
        device.comes_to("trial" if has_bundle else "serving", 2)
        device.release.choose(1)
        assert not device.comes_to("trial" if has_bundle else "serving", 1)
        until(lambda: device.answers == 3, APPEARS_S)
    with running(config) as device:
        assert (device.release.status().sequence, device.answers) == (1, 3)
        device.release.choose(2)
        device.comes_to("trial", 2)
        until(lambda: device.answers == 4, APPEARS_S)
        device.release.choose(1)
        device.comes_to("serving", 1)


def test_a_device_that_was_told_to_take_the_newest_takes_no_older_one(
    folder: Path, publisher: Publisher, releases: Releases
) -> None:
    for version in (3, 4):
        releases.release({MODEL: publisher.bundle(version)})
    config = write_device(folder, releases, None)
    with running(config) as device:
        device.release.choose(None)
        device.release.choose(1)
        assert "is older than release 2" in device.comes_to("refused", 2)


@pytest.mark.slow
def test_long_after_it_was_installed_nobody_sends_a_device_back(
    folder: Path, publisher: Publisher, releases: Releases
) -> None:
    releases.release({MODEL: publisher.bundle(3)})
    config = write_device(folder, releases, None)
    with running(config) as device:
        second = releases.release({MODEL: publisher.bundle(4)})
        device.comes_to("trial", second)
        device.proves()
    path = folder / "state/release/units/state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "installed_unix_s": 1.0}))
    with running(config) as device:
        device.release.choose(1)
        assert "is older than release 2" in device.comes_to("refused", second)
        assert device.answers == 4


@pytest.mark.slow
def test_why_a_device_cannot_go_back_is_told(folder: Path, publisher: Publisher, releases: Releases) -> None:
    first = releases.release({MODEL: publisher.bundle(3)})
    config = write_device(folder, releases, None)
    with running(config) as device:
        second = releases.release({MODEL: publisher.bundle(4)})
        device.comes_to("trial", second)
        device.proves()
        (folder / f"state/release/units/{second}/release.json").write_text("{}")
        device.release.choose(first)
        assert f"release {second}: " in device.comes_to("refused", second)
        assert device.answers == 4


def test_a_release_that_would_let_data_leave_is_refused(folder: Path, publisher: Publisher, releases: Releases) -> None:
    config = write_device(folder, releases, publisher.bundle(2))
    local = folder / "local.yaml"
    local.write_text(f"version: 1\n{WARD}")
    config.write_text(json.dumps({**json.loads(config.read_text()), "policy": str(local)}))
    kept = releases.release({MODEL: publisher.bundle(3)}, policy=policy_file(folder, f"version: 1\n{WARD}"))
    with running(config) as device:
        device.comes_to("trial", kept)
        releases.release({MODEL: publisher.bundle(4)}, policy=policy_file(folder, "version: 1\n"))
        until(lambda: "drops 'ward'" in device.release.status().reason, APPEARS_S)
        assert device.answers == 3
        assert device.agent.router.verdict(MODEL, {"room": "ward"}, (10,)).egress_rule == "ward"


@pytest.mark.slow
def test_one_that_is_slower_than_its_deadline_is_never_served(
    folder: Path, publisher: Publisher, releases: Releases
) -> None:
    policy = policy_file(folder, "version: 1\ndefaults: {deadline: 50ms}\n")
    first = releases.release({MODEL: publisher.bundle(3)}, policy=policy)
    config = write_device(folder, releases, None)
    with running(config) as device:
        releases.release({MODEL: slow_bundle(folder, 4)}, policy=policy)
        reason = device.comes_to("refused", first)
        assert "the deadline is 50 ms" in reason
        assert device.answers == 3


def test_a_model_that_a_release_leaves_out_is_the_one_of_agent_yaml_at_once(
    folder: Path, publisher: Publisher, releases: Releases
) -> None:
    releases.release({MODEL: publisher.bundle(3)})
    config = write_device(folder, releases, publisher.bundle(2))
    with running(config) as device:
        until(lambda: device.answers == 3, APPEARS_S)
        second = releases.release(policy=policy_file(folder))
        device.comes_to("trial", second)
        until(lambda: device.answers == 2, APPEARS_S)
    with running(config) as device:  # as it is after a restart
        assert (device.release.status().sequence, device.answers) == (second, 2)


def test_a_release_that_would_leave_a_model_without_any_side_is_refused(
    folder: Path, publisher: Publisher, releases: Releases
) -> None:
    first = releases.release({MODEL: publisher.bundle(3)})
    config = write_device(folder, releases, None)
    with running(config) as device:
        releases.release(policy=policy_file(folder))
        assert f"has no bundle of {MODEL!r}, and agent.yaml names none" in device.comes_to("refused", first)
        assert device.answers == 3


def test_a_bundle_that_is_installed_is_not_fetched_again(
    folder: Path, publisher: Publisher, releases: Releases
) -> None:
    releases.release({MODEL: publisher.bundle(3)}, policy=policy_file(folder))
    config = write_device(folder, releases, None)
    with running(config) as device:
        served: Callable[[], object] = lambda: device.agent.model(MODEL).edge  # noqa: E731
        before = served()
        second = releases.release(like=1, policy=policy_file(folder, "version: 1\ndefaults: {deadline: 3s}\n"))
        for path in (releases.place / "targets/payload").iterdir():
            if path.stat().st_size > 2000:
                path.unlink()  # the bundle
        device.comes_to("trial", second)
        until(lambda: device.agent.router.settings(MODEL).deadline_s == 3.0, APPEARS_S)
        assert served() is before


@pytest.mark.parametrize("is_proven", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_release_that_does_not_load_at_a_restart_is_not_said_to_be_served_and_is_tried_at_the_next(
    folder: Path, publisher: Publisher, releases: Releases, is_proven: bool
) -> None:
    keeps = "version: 1\n" + WARD
    first = releases.release({MODEL: publisher.bundle(3)}, policy=policy_file(folder, keeps))
    config = write_device(folder, releases, publisher.bundle(2))
    with running(config) as device:
        device.comes_to("trial", first)
        second = releases.release({MODEL: publisher.bundle(4)}, policy=policy_file(folder))
        device.comes_to("trial", second)
        if is_proven:
            device.proves()
    (folder / "local.yaml").write_text(keeps)
    loads = config.read_text()
    does_not = json.dumps({**json.loads(loads), "policy": "local.yaml"})
    config.write_text(does_not)
    with running(config) as device:
        assert device.answers == 3
        assert f"release {second} does not load here" in device.comes_to("refused", first)
    config.write_text(loads)
    with running(config) as device:
        device.comes_to("serving" if is_proven else "trial", second)
        until(lambda: device.answers == 4, APPEARS_S)
    config.write_text(does_not)
    with running(config) as device:
        third = releases.release({MODEL: publisher.bundle(5)}, policy=policy_file(folder, keeps))
        device.comes_to("trial", third)
        assert device.release.status().former == first
    assert json.loads((folder / "state/release/units/state.json").read_text())["proven"] == (
        second if is_proven else first
    )
