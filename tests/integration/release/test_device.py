"""`upwell agent` as a process that follows releases: what is taken, what goes back by itself, what a kill leaves."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.releases_for_tests import Releases
from tests.faults.scene import until
from tests.in_process import InProcess
from tests.integration.agent.harness import agent_process, scraped
from tests.integration.agent.versions import (
    APPEARS_S,
    EASY,
    MODEL,
    TELLING,
    Callers,
    Publisher,
    ask,
    health,
    serves,
)
from tests.integration.release.devices import policy_file, release_of, state, write_device
from upwell.edge.runtimes.probe_process import TIMEOUT_S
from upwell.edge.updates.releases.release_source import NO_CLOCK
from upwell.shared.platform.system_clock import is_synchronised


@pytest.mark.slow
def test_good_releases_roll_under_load_and_bad_ones_go_back_by_themselves(
    folder: Path, publisher: Publisher, releases: Releases
) -> None:
    """No request is unanswered meanwhile."""
    config = write_device(folder, releases, publisher.bundle(2))
    with agent_process(config) as agent, Callers(agent, EASY, TELLING) as callers:
        assert (serves(agent), release_of(agent)["sequence"]) == (2, 0)
        policy = policy_file(folder, "version: 1\nrules: [{name: stays, match: {tags: {a: b}}, egress: deny}]\n")
        first = releases.release({MODEL: publisher.bundle(3)}, policy=policy)
        until(lambda: release_of(agent)["sequence"] == first and serves(agent) == 3, APPEARS_S)
        until(lambda: release_of(agent)["phase"] == "serving", APPEARS_S)
        wrong = releases.release({MODEL: publisher.bundle(4, answers_of=5)})  # on its golden vectors
        until(lambda: release_of(agent)["phase"] == "refused", APPEARS_S)
        assert f"release {wrong} does not run here" in release_of(agent)["reason"]
        assert (serves(agent), release_of(agent)["sequence"]) == (3, first)
        fragile = releases.release({MODEL: publisher.bundle(5, fragile=True)}, policy=policy_file(folder))
        until(lambda: release_of(agent)["phase"] == "rolled_back", APPEARS_S)
        assert (serves(agent), release_of(agent)["sequence"]) == (3, first)
        assert f"version {fragile} was rolled back: model {MODEL}: " in release_of(agent)["reason"]
        again = releases.release(like=first)  # an older one, as a new sequence
        until(lambda: release_of(agent)["sequence"] == again, APPEARS_S)
        assert release_of(agent)["former"] == first
        assert scraped(agent.metrics_url)["upwell_release_sequence"] == again
    assert callers.errors == []
    assert set(callers.versions) <= {2, 3, 5}
    assert callers.versions[-1] == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_release_whose_model_never_ends_is_given_up_and_the_next_one_is_taken(
    folder: Path, publisher: Publisher, releases: Releases
) -> None:
    config = write_device(folder, releases, publisher.bundle(2))
    with agent_process(config) as agent, Callers(agent, EASY) as callers:
        good = releases.release({MODEL: publisher.bundle(3)}, policy=policy_file(folder))
        until(lambda: release_of(agent)["sequence"] == good, APPEARS_S)
        releases.release({MODEL: publisher.bundle(4, endless=True)})
        until(lambda: release_of(agent)["phase"] == "refused", TIMEOUT_S + 2 * APPEARS_S)
        assert f"model.onnx hung for {TIMEOUT_S:g} s in the probing process" in release_of(agent)["reason"]
        assert (serves(agent), release_of(agent)["sequence"]) == (3, good)
        assert not [pid for pid in children_of(agent.program.pid) if "runtimes.probe" in pid]
        again = releases.release({MODEL: publisher.bundle(5)})
        until(lambda: release_of(agent)["sequence"] == again and serves(agent) == 5, APPEARS_S)
    assert callers.errors == []
    assert callers.versions == [2, 3, 5]


def children_of(parent: int) -> list[str]:
    """The command lines of the processes that it has started and that still run."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [pid for task in tasks for pid in task.read_text().split()]
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids]


@pytest.mark.parametrize("number", [signal.SIGKILL])
def test_a_restart_finds_the_right_release_and_its_trial_goes_on(
    folder: Path, publisher: Publisher, releases: Releases, number: signal.Signals
) -> None:
    config = write_device(folder, releases, None)
    first = releases.release({MODEL: publisher.bundle(3)}, policy=policy_file(folder))
    with agent_process(config) as agent:
        assert (serves(agent), ask(agent), release_of(agent)["sequence"]) == (3, 3, first)
        second = releases.release({MODEL: publisher.bundle(4, fragile=True)}, policy=policy_file(folder))
        until(lambda: release_of(agent)["sequence"] == second and serves(agent) == 4, APPEARS_S)
        agent.program.send(number)
        agent.program.wait()
    with agent_process(config) as agent, Callers(agent, TELLING) as callers:
        until(lambda: serves(agent) == 3, APPEARS_S)
        until(lambda: state(folder)["current"] == first, APPEARS_S)
        until(lambda: release_of(agent)["phase"] == "rolled_back", APPEARS_S)
    assert callers.errors == []
    assert callers.versions == [3]


@pytest.mark.slow
def test_a_device_serves_and_starts_again_without_the_repository(
    folder: Path, publisher: Publisher, releases: Releases
) -> None:
    config = write_device(folder, releases, None)
    sequence = releases.release({MODEL: publisher.bundle(3)}, policy=policy_file(folder))
    with agent_process(config) as agent, Callers(agent, TELLING) as callers:
        assert release_of(agent)["sequence"] == sequence
        releases.place.rename(folder / "away")
        until(lambda: "no such folder" in release_of(agent)["reason"], APPEARS_S)
    with agent_process(config) as agent:
        assert (serves(agent), ask(agent), release_of(agent)["sequence"]) == (3, 3, sequence)
    assert callers.errors == []


def test_where_the_first_release_cannot_be_had_the_agent_says_why(
    folder: Path, releases: Releases, in_process: InProcess
) -> None:
    config = write_device(folder, releases, None)
    ended = in_process("agent", "-c", config)
    assert ended.code == 2
    assert "nothing is installed yet, and the first release cannot be fetched" in ended.err


def test_health_says_when_there_is_no_clock(folder: Path, publisher: Publisher, releases: Releases) -> None:
    releases.release({MODEL: publisher.bundle(3)})
    config = write_device(folder, releases, None, clock="auto")
    with agent_process(config) as agent:
        until(lambda: release_of(agent)["notice"] == ("" if is_synchronised() else NO_CLOCK), APPEARS_S)
        assert health(agent)["status"] == "ok"
