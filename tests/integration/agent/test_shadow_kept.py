"""What a release says that runs beside, and was not told to the service yet, outlives a restart of the agent."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults.clouds import ScriptedCloud
from tests.faults.oracles import EDGE_BUNDLE, picture
from tests.faults.scene import until
from tests.integration.agent.kept import EASY, spooling_agent
from upwell.edge.bundle.open_bundle import NO_TRUST
from upwell.edge.models.edge_model import EdgeModel
from upwell.edge.models.model_config import ModelSection
from upwell.edge.observe import shadow_release
from upwell.edge.observe.shadow_release import FILE_NAME, ShadowNews, ShadowRelease
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.updates.model_versions.model_start import loaded
from upwell.edge.updates.model_versions.version_comparison import Versions

RELEASE = 7
LIMIT_S = 60.0


@pytest.fixture
def beside() -> Iterator[EdgeModel]:
    """The model of the release that runs beside."""
    section = ModelSection.model_validate({"edge": {"bundle": str(EDGE_BUNDLE), "runtime": "onnx"}})
    with loaded("digits", section, NO_TRUST) as served:
        assert served.edge is not None
        yield served.edge


def has_lines(shadow: ShadowRelease, count: int) -> bool:
    news = shadow.news()
    return news is not None and len(news.lines) >= count


def news_of(shadow: ShadowRelease) -> ShadowNews:
    news = shadow.news()
    assert news is not None
    return news


def test_lines_that_were_not_told_are_told_after_a_restart_and_those_that_were_are_not(
    tmp_path: Path, beside: EdgeModel
) -> None:
    with spooling_agent(tmp_path, EASY, None) as it:
        it.agent.shadow.begin(RELEASE, {"digits": beside})

        def asked(count: int) -> bool:
            it.agent.infer("digits", {"image": picture(0)})
            return has_lines(it.agent.shadow, count)

        until(lambda: asked(1), LIMIT_S)
        first = news_of(it.agent.shadow)
        it.agent.shadow.told(first)
        until(lambda: asked(2), LIMIT_S)
    kept = json.loads((tmp_path / "state" / FILE_NAME).read_text())
    with spooling_agent(tmp_path, EASY, None) as it:
        assert it.agent.shadow.news() is None, "nothing runs beside until the release is loaded"
        it.agent.shadow.begin(RELEASE, {"digits": beside})
        news = news_of(it.agent.shadow)
        assert [*news.lines] == kept["lines"]
        assert not set(news.lines) & set(first.lines)
        it.agent.shadow.told(news)
        it.agent.shadow.begin(RELEASE + 1, {"digits": beside})
        assert it.agent.shadow.news() is None
    assert json.loads((tmp_path / "state" / FILE_NAME).read_text())["release"] == RELEASE + 1
    (tmp_path / "state" / FILE_NAME).write_text("{")
    with spooling_agent(tmp_path, EASY, None) as it:  # a broken file costs the lines alone
        it.agent.shadow.begin(RELEASE + 1, {"digits": beside})
        it.agent.shadow.end()
    assert not (tmp_path / "state" / FILE_NAME).exists()


def test_a_request_is_answered_without_a_thread_for_the_shadow_release_which_runs_on_later(
    tmp_path: Path, beside: EdgeModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("can't start new thread")

    with spooling_agent(tmp_path, EASY, None) as it:
        it.agent.shadow.begin(RELEASE, {"digits": beside})
        with monkeypatch.context() as patch:
            patch.setattr(shadow_release, "threading", SimpleNamespace(Thread=fail))
            assert it.agent.infer("digits", {"image": picture(0)}).outputs["scores"].shape == (1, 10)
        assert "running the shadow release failed" in caplog.text

        def asked() -> bool:
            it.agent.infer("digits", {"image": picture(0)})
            return has_lines(it.agent.shadow, 1)

        until(asked, LIMIT_S)


@contextmanager
def early_exit(folder: Path, cloud: ScriptedCloud | None, **more: object) -> Iterator[AgentCore]:
    """An agent whose model is a head with an early answer: what goes up are its logits."""
    bundle = shutil.copytree(EDGE_BUNDLE, folder / "bundle")
    description = (bundle / "model.yaml").read_text()
    written, instead = "labels: labels.txt}", "labels: labels.txt}, logits: {kind: tensor}"
    (bundle / "model.yaml").write_text(description.replace(written, instead))
    side = {"bundle": str(bundle), "runtime": "onnx", "exits": ["logits"]}
    models = {"digits": {"edge": side, "cloud": {"model": "digits-large"}}}
    with spooling_agent(folder, {**EASY, **more}, cloud, models=models) as it:
        yield it.agent


def test_it_answers_what_came_whatever_goes_up(tmp_path: Path, beside: EdgeModel) -> None:
    with early_exit(tmp_path, None) as agent:
        agent.shadow.begin(RELEASE, {"digits": beside})

        def asked() -> bool:
            agent.infer("digits", {"image": picture(0)})
            return has_lines(agent.shadow, 1)

        until(asked, LIMIT_S)


def test_versions_on_trial_answer_what_came_whatever_goes_up(tmp_path: Path, beside: EdgeModel) -> None:
    with ScriptedCloud() as cloud, early_exit(tmp_path, cloud, audit="100%") as agent:
        edge = agent.models["digits"].edge
        assert edge is not None
        edge.versions = versions = Versions(edge, beside, (None, None))
        agent.infer("digits", {"image": picture(0)})
        until(lambda: bool(versions._open), LIMIT_S)
