"""`upwell model rollback`, beside an agent that runs and without one; and an older model under a new version."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.faults.scene import until
from tests.in_process import CommandResult, InProcess
from tests.integration.agent.harness import Running, agent_process
from tests.integration.agent.versions import (
    APPEARS_S,
    EASY,
    MODEL,
    TELLING,
    Callers,
    Publisher,
    ask,
    serves,
    state,
    updates,
    write_config,
)
from upwell.edge.commands import rollback_cli

PROVEN_S = 60.0


@pytest.fixture
def publisher(folder: Path) -> Publisher:
    return Publisher(folder)


@pytest.fixture
def config(folder: Path, publisher: Publisher) -> Path:
    """Of an agent that came with version 2."""
    return write_config(folder, publisher.signer, publisher.bundle(2))


def proven(agent: Running, version: int) -> None:
    until(lambda: serves(agent) == version and not updates(agent)["on_trial"], PROVEN_S)


def left(ended: CommandResult, version: int, serves: int | None) -> None:
    assert ended.code == 0, ended.err
    said = json.loads(ended.out)
    assert (said["left"], said["serves"]) == (version, serves)


@pytest.mark.slow
def test_a_version_that_has_proven_itself_is_left_only_below_the_floor(
    config: Path, publisher: Publisher, folder: Path, in_process: InProcess
) -> None:
    with agent_process(config) as agent, Callers(agent, EASY, TELLING) as callers:
        for version in (3, 4):
            publisher.offer(version)
            proven(agent, version)
        refused = in_process("model", "rollback", MODEL, "-c", config)
        assert refused.code == 1
        assert "version 3 is below the floor: version 4 has proven itself here; use --below-floor" in refused.err
        assert serves(agent) == 4
        left(in_process("model", "rollback", MODEL, "-c", config, "--below-floor", "--json"), 4, 3)
        until(lambda: ask(agent) == 3 == serves(agent), APPEARS_S)
        assert updates(agent)["refusal"] == "condemned"
        assert updates(agent)["message"] == "version 4 was rolled back: by hand"
        assert (updates(agent)["floor"], updates(agent)["installed"]) == (3, 3)
        publisher.offer(2)
        until(lambda: updates(agent)["refusal"] == "older", APPEARS_S)
        publisher.offer(4)
        until(lambda: updates(agent)["refusal"] == "condemned", APPEARS_S)
        assert serves(agent) == 3
    assert callers.errors == []
    assert callers.versions == [2, 3, 4, 3]
    with agent_process(config) as agent:
        assert (serves(agent), ask(agent)) == (3, 3)
    assert state(folder)["condemned"] == {"4": "by hand"}


def test_a_version_on_trial_is_left_without_more_ado(
    config: Path, publisher: Publisher, folder: Path, in_process: InProcess
) -> None:
    with agent_process(config) as agent:
        publisher.offer(3)
        until(lambda: serves(agent) == 3 == state(folder)["current"], APPEARS_S)
        left(in_process("model", "rollback", MODEL, "-c", config, "--json"), 3, 2)
        until(lambda: ask(agent) == 2 == serves(agent), APPEARS_S)
        again = in_process("model", "rollback", MODEL, "-c", config)
        assert again.code == 2
        assert "no version is installed here to roll back" in again.err


@pytest.mark.slow
def test_an_agent_that_does_not_run_obeys_at_its_next_start(
    config: Path, publisher: Publisher, folder: Path, in_process: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_cli, "TAKEN_WITHIN_S", 0.2)
    with agent_process(config) as agent:
        publisher.offer(3)
        until(lambda: serves(agent) == 3 == state(folder)["current"], APPEARS_S)
    left(in_process("model", "rollback", MODEL, "-c", config, "--json"), 3, None)
    assert state(folder)["current"] == 3
    with agent_process(config) as agent:
        assert (serves(agent), ask(agent)) == (2, 2)
        assert updates(agent)["message"] == "version 3 was rolled back: by hand"
    assert state(folder)["current"] == 0


@pytest.mark.slow
def test_a_proven_version_is_left_neither_unasked_nor_where_the_one_before_is_damaged(
    folder: Path, publisher: Publisher, in_process: InProcess
) -> None:
    publisher.offer(2)
    config = write_config(folder, publisher.signer, None)
    with agent_process(config) as agent, Callers(agent, EASY, TELLING) as callers:
        publisher.offer(3)
        proven(agent, 3)
        refused = in_process("model", "rollback", MODEL, "-c", config)
        assert refused.code == 1
        assert "version 2 is below the floor: version 3 has proven itself here; use --below-floor" in refused.err
        shutil.rmtree(folder / f"state/bundles/{MODEL}/2")
        refused = in_process("model", "rollback", MODEL, "-c", config, "--below-floor")
        assert refused.code == 1
        assert "no earlier version is installed on this device" in refused.err
        assert (serves(agent), ask(agent)) == (3, 3)
    assert callers.errors == []


@pytest.mark.parametrize(
    ("model", "change", "said"),
    [
        ("other", {}, "there is no model 'other'"),
        (MODEL, {"updates": None}, "it has no `updates`"),
        (MODEL, {}, "no version is installed here"),
    ],
)
def test_what_cannot_be_rolled_back_is_said(
    config: Path, in_process: InProcess, model: str, change: dict[str, None], said: str
) -> None:
    document = json.loads(config.read_text())
    for key in change:
        del document["models"][MODEL]["edge"][key]
    config.write_text(json.dumps(document))
    ended = in_process("model", "rollback", model, "-c", config)
    assert ended.code == 2
    assert said in ended.err


@pytest.mark.slow
def test_an_order_that_is_none_is_left_alone(config: Path, publisher: Publisher, folder: Path) -> None:
    with agent_process(config) as agent:
        publisher.offer(3)
        until(lambda: serves(agent) == 3 == state(folder)["current"], APPEARS_S)
        order = folder / f"state/bundles/{MODEL}/rollback.json"
        for data in (b"", b"[" * 100_000, b'{"id": "x", "version": 99}', b'{"id": "x", "version": 3, "more": 1}'):
            order.write_bytes(data)
            until(lambda: not order.exists(), APPEARS_S)
        assert (serves(agent), ask(agent)) == (3, 3)


def test_an_older_model_comes_back_under_a_greater_version(
    config: Path, publisher: Publisher, folder: Path, in_process: InProcess
) -> None:
    """As docs/releases.md says: unpacked, packed again and signed."""
    with agent_process(config) as agent:
        publisher.offer(4)
        until(lambda: serves(agent) == 4, APPEARS_S)
        archive, old = publisher.bundle(3), folder / "old"
        with tarfile.open(archive) as tar:
            tar.extractall(old, filter="data")
        out = folder / "5.bundle.tar"
        packed = in_process("model", "pack", old, "--name", MODEL, "--version", 5, "--out", out)
        assert packed.code == 0, packed.err
        key = folder / "key.pem"
        key.write_bytes(publisher.signer.pem)
        assert in_process("model", "sign", out, "--key", key).code == 0
        out.rename(publisher.offered / out.name)
        until(lambda: serves(agent) == 5, APPEARS_S)
        assert ask(agent) == 3  # what it says is what version 3 said
