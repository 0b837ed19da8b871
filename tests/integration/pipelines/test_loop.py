"""The example of docs/pipelines.md: a loop over frames in a program of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines_run import FOLLOWED, READ, pipelines_text, write_agent, write_video
from upwell.pipelines import Pipeline
from upwell.shared.errors import ConfigError
from upwell.tools.demo import digit_data

PAGE = Path(__file__).parents[3] / "docs/pipelines.md"


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two cards."""
    return write_video(tmp_path_factory.mktemp("video") / "cards.mp4", digit_data.video(digit_data.cards(2, seed=3)))


def write_site(folder: Path, path: Path) -> None:
    video = {"video": str(path)}
    events = [{"name": "passed", "on": "cross middle"}]
    belt = {"source": video, "steps": [*FOLLOWED, READ], "events": events}
    (folder / "pipelines.yaml").write_text(pipelines_text(folder, belt=belt, other={"source": video}))
    write_agent(folder)


def test_the_example_of_the_page_says_what_is_on_the_video(tmp_path: Path, video: Path) -> None:
    write_site(tmp_path, video)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^1 card \(0\.\d+, .*\{'label': '\d'", done.stdout, re.MULTILINE)
    assert done.stdout.count("['passed']") == (tmp_path / "belt.jsonl").read_text().count("\n") == 2


def test_a_loop_can_be_stopped_and_the_sums_agree(tmp_path: Path, video: Path) -> None:
    write_site(tmp_path, video)
    with Pipeline.from_config(tmp_path / "pipelines.yaml", tmp_path / "agent.yaml", "belt") as pipeline:
        for answered in pipeline:
            if answered.scene.frame.number == 3:
                pipeline.stop()
        status = pipeline.status
        assert "digits" in pipeline.agent.models
    assert status.frames["answered"] == 3
    pipeline.close()


def test_events_of_a_pipeline_keep_waiting_while_another_one_of_the_file_is_run(tmp_path: Path, video: Path) -> None:
    write_site(tmp_path, video)
    (tmp_path / "belt.jsonl").mkdir()  # so that they cannot be written
    files = tmp_path / "pipelines.yaml", tmp_path / "agent.yaml"
    for name in ("belt", "other"):
        with Pipeline.from_config(*files, name) as pipeline:
            assert sum(1 for _ in pipeline) > 0
    (tmp_path / "belt.jsonl").rmdir()
    with Pipeline.from_config(*files, "belt"):
        pass  # which closes it when they are delivered
    assert (tmp_path / "belt.jsonl").read_text().count('"event":"passed"') == 2


def test_which_pipeline_is_asked_where_there_are_several(tmp_path: Path, video: Path) -> None:
    write_site(tmp_path, video)
    with pytest.raises(ConfigError, match="belt, other"):
        Pipeline.from_config(tmp_path / "pipelines.yaml", tmp_path / "agent.yaml")
