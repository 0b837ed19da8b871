"""`upwell agent` as a process that keeps its model up to date: what is taken, what is not, what a restart finds."""

from __future__ import annotations

import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import sampled
from tests.faults.bundles_for_tests import Signer
from tests.faults.scene import until
from tests.in_process import InProcess
from tests.integration.agent.harness import Running, agent_process, scraped
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
    state,
    updates,
    write_config,
)
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import start_server


@pytest.fixture
def publisher(folder: Path) -> Publisher:
    return Publisher(folder)


@pytest.fixture
def config(folder: Path, publisher: Publisher) -> Path:
    """Of an agent that came with version 2."""
    return write_config(folder, publisher.signer, publisher.bundle(2))


def awaits(agent: Running, refusal: str) -> None:
    """Until the agent says that it refuses what there is for this reason."""
    until(lambda: updates(agent)["refusal"] == refusal, APPEARS_S)


@pytest.mark.slow
def test_under_load_good_versions_are_taken_and_all_others_are_not(
    config: Path, publisher: Publisher, folder: Path
) -> None:
    """Any caller's every request is answered, by the right version."""
    with agent_process(config) as agent, Callers(agent, EASY, TELLING) as callers:
        assert (serves(agent), updates(agent)["installed"]) == (2, 0)
        publisher.offer(3)
        until(lambda: serves(agent) == 3, APPEARS_S)
        until(lambda: not state(folder)["is_on_trial"], APPEARS_S)
        publisher.offer(4, signer=Signer(folder, "stranger"))
        awaits(agent, "wrong_signature")
        publisher.offer(1)
        awaits(agent, "older")
        publisher.offer(5, answers_of=6)
        awaits(agent, "failed_self_test")
        assert (serves(agent), updates(agent)["installed"]) == (3, 3)
        publisher.offer(7, fragile=True)
        awaits(agent, "condemned")
        until(lambda: serves(agent) == 3 == updates(agent)["installed"], APPEARS_S)
        found = scraped(agent.metrics_url)
        assert found[f"upwell_update_refused{{model={MODEL},refusal=condemned}}"] == 1
        assert found[f"upwell_update_looks_total{{model={MODEL},outcome=refused}}"] == 3
        assert found[f"upwell_model_version{{model={MODEL}}}"] == 3
        publisher.offer(8)
        until(lambda: serves(agent) == 8 == callers.versions[-1], APPEARS_S)
        assert updates(agent)["refusal"] is None
    assert callers.errors == []
    # Of version 7 some answers may have been seen, between those of the one that stood in for it.
    assert [version for version in callers.versions if version != 7][:2] == [2, 3]
    assert set(callers.versions) <= {2, 3, 7, 8}
    assert callers.versions[-1] == 8


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_restart_finds_the_right_version(
    config: Path, publisher: Publisher, folder: Path, number: signal.Signals
) -> None:
    publisher.offer(3)
    with agent_process(config) as agent:
        until(lambda: serves(agent) == 3, APPEARS_S)
        publisher.offer(4, fragile=True)
        until(lambda: serves(agent) == 4, APPEARS_S)
        while ask(agent, TELLING) != 3 or serves(agent) != 3:
            pass
        until(lambda: "4" in state(folder)["condemned"], APPEARS_S)
        agent.program.send(number)
        agent.program.wait()
    with agent_process(config) as agent:
        assert (serves(agent), ask(agent, TELLING)) == (3, 3)
        until(lambda: updates(agent)["looks"].get("nothing_new", 0) > 0, APPEARS_S)
        assert updates(agent)["refusal"] == "condemned"


@pytest.mark.parametrize(
    "came_with",
    [pytest.param(True, marks=pytest.mark.exhaustive), False],
    ids=["back to the factory's", "back to the one before"],
)
def test_a_trial_that_a_restart_broke_goes_on(folder: Path, publisher: Publisher, came_with: bool) -> None:
    config = write_config(folder, publisher.signer, publisher.bundle(2) if came_with else None)
    if not came_with:
        publisher.offer(2)
    with agent_process(config) as agent:
        publisher.offer(4, fragile=True)
        until(lambda: serves(agent) == 4, APPEARS_S)
        agent.program.send(signal.SIGKILL)
        agent.program.wait()
    with agent_process(config) as agent, Callers(agent, TELLING) as callers:
        until(lambda: serves(agent) == 2, APPEARS_S)
        until(lambda: state(folder)["current"] == (0 if came_with else 2), APPEARS_S)
    assert callers.errors == []
    assert callers.versions == [2]


@pytest.mark.parametrize("loss", sampled(["damaged", "deleted", "an older copy"], 3))
def test_a_state_that_is_lost_brings_no_older_version_back(
    config: Path, publisher: Publisher, folder: Path, loss: str
) -> None:
    path = folder / f"state/bundles/{MODEL}/state.json"
    with agent_process(config) as agent:
        publisher.offer(3)
        until(lambda: serves(agent) == 3, APPEARS_S)
        copy = path.read_bytes()
        publisher.offer(5)
        until(lambda: serves(agent) == 5 == state(folder)["current"], APPEARS_S)
    if loss == "deleted":
        path.unlink()
    else:
        path.write_bytes(copy if loss == "an older copy" else b"{")
    publisher.offer(4)
    with agent_process(config) as agent:
        assert (serves(agent), ask(agent)) == (5, 5)
        awaits(agent, "older")
        assert updates(agent)["notice"].endswith("going on with the installed version 5")
        assert updates(agent)["floor"] == 3  # 5 is on trial
        assert "going on with the installed version 5" in agent.said
        assert (serves(agent), ask(agent)) == (5, 5)


@pytest.mark.slow
def test_what_a_full_disk_does_not_take_comes_later(config: Path, publisher: Publisher) -> None:
    with agent_process(config) as agent, Callers(agent, EASY) as callers:
        file_limit(agent, 100)  # so small that the state that names a new version does not fit either
        publisher.offer(3)
        until(lambda: "cannot be written" in updates(agent)["failure"], APPEARS_S)
        assert (serves(agent), updates(agent)["installed"]) == (2, 0)
        file_limit(agent, -1)
        until(lambda: serves(agent) == 3 == updates(agent)["installed"], APPEARS_S)
    assert callers.errors == []
    assert callers.versions[0] == 2


def file_limit(running: Running, size_bytes: int) -> None:
    """From now on no file of the process may grow beyond this: what a full disk is to it."""
    _, hard = resource.prlimit(running.program.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(running.program.pid, resource.RLIMIT_FSIZE, (size_bytes if size_bytes >= 0 else hard, hard))


def test_without_a_bundle_the_first_one_is_fetched_and_kept(folder: Path, publisher: Publisher) -> None:
    config = write_config(folder, publisher.signer, None)
    publisher.offer(3)
    with agent_process(config) as agent:
        assert (serves(agent), ask(agent)) == (3, 3)
    shutil.rmtree(publisher.offered)
    with agent_process(config) as agent:
        assert (serves(agent), ask(agent)) == (3, 3)
        until(lambda: "No such file" in updates(agent)["failure"], APPEARS_S)


def test_where_the_first_one_cannot_be_had_the_agent_says_why(
    folder: Path, publisher: Publisher, in_process: InProcess
) -> None:
    config = write_config(folder, publisher.signer, None)

    def said_at_start() -> str:
        ended = in_process("agent", "-c", config)
        assert ended.code == 2
        (said,) = (line for line in ended.err.splitlines() if line.startswith("error: "))
        assert f"models.{MODEL}.edge" in said
        return said

    assert "there is no bundle at" in said_at_start()
    publisher.offer(3, signer=Signer(folder, "stranger"))
    assert "which is not trusted" in said_at_start()
    shutil.rmtree(publisher.offered)
    assert "No such file" in said_at_start()


@pytest.fixture
def cloud_address() -> Iterator[str]:
    server = start_server(FakeDataplane(), ["127.0.0.1:0"], max_workers=8)
    yield server.addresses[0]
    server.stop(0.0)


def test_with_a_cloud_it_answers_until_the_first_bundle_is_there(
    folder: Path, publisher: Publisher, cloud_address: str
) -> None:
    config = write_config(folder, publisher.signer, None, cloud_address)
    with agent_process(config) as agent, Callers(agent, EASY) as callers:
        until(lambda: callers.versions == [0])
        assert MODEL not in health(agent)["models"]
        until(lambda: "there is no bundle" in updates(agent)["failure"], APPEARS_S)
        publisher.offer(3)
        until(lambda: serves(agent) == 3 == callers.versions[-1], APPEARS_S)
        assert ask(agent) == 3
    assert callers.errors == []
    assert set(callers.versions) == {0, 3}


def test_the_key_of_what_the_device_came_with_may_be_taken_out(
    folder: Path, publisher: Publisher, config: Path, in_process: InProcess
) -> None:
    new = Signer(folder, "new")
    config.write_text(config.read_text().replace(str(publisher.signer.public), str(new.public)))
    ended = in_process("agent", "-c", config)  # nothing newer is installed
    assert ended.code == 2
    assert "which is not trusted" in ended.err
    both = config.read_text().replace(f'"{new.public}"', f'"{publisher.signer.public}", "{new.public}"')
    config.write_text(both)
    publisher.offer(3, signer=new)
    with agent_process(config) as agent:
        until(lambda: serves(agent) == 3, APPEARS_S)
    config.write_text(both.replace(f'"{publisher.signer.public}", ', ""))
    with agent_process(config) as agent:
        assert (serves(agent), ask(agent)) == (3, 3)
        assert "the configured bundle cannot serve as a fallback" in agent.said


@pytest.mark.slow
def test_where_the_newest_does_not_load_any_more_the_one_before_does(
    config: Path, publisher: Publisher, folder: Path
) -> None:
    with agent_process(config) as agent:
        for version in (3, 4):
            publisher.offer(version)
            until(lambda version=version: serves(agent) == version, APPEARS_S)  # type: ignore[misc]  # a default
    installed = folder / f"state/bundles/{MODEL}"
    shutil.rmtree(installed / "4")
    spoilt = publisher.bundle(4, answers_of=9)  # verified, and no good here: as after a change of the runtime
    shutil.unpack_archive(spoilt, installed / "4", "tar")
    with agent_process(config) as agent, Callers(agent, EASY) as callers:
        until(lambda: callers.count > 10)
        assert serves(agent) == 3
        assert "version 4 is not used" in agent.said
    assert callers.versions == [3]
