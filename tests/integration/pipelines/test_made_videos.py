"""The sixteen made scenes as real videos: encoded, decoded, found by the demo's detector, followed, and counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.pipelines_run import pipelines_text, running_pipelines, write_agent, write_video
from tests.pipelines_scenes import LOST_S, SCENES, MadeScene, boxes
from upwell.shared.tensors import Array
from upwell.tools.demo import digit_data

QUICK = ("one stays and one passes",)


def as_cards(scene: MadeScene) -> MadeScene:
    """The scene with everybody as large as the cards that the detector knows, seen by no other detector."""
    width, height = digit_data.FRAME_PX / digit_data.WIDTH, digit_data.FRAME_PX / digit_data.HEIGHT
    return replace(scene, walkers=tuple(replace(one, width=width, height=height) for one in scene.walkers))


def pictures(scene: MadeScene) -> Iterator[Array]:
    """The frames: green cards on noise, and pillars before them."""
    random = np.random.default_rng(scene.seed)
    for number in range(scene.looks):
        noise = random.normal(digit_data.BACKGROUND, digit_data.NOISE, (digit_data.HEIGHT, digit_data.WIDTH, 1)).clip(
            0, 255
        )
        picture = np.repeat(noise.astype(np.uint8), 3, axis=2)
        inside = (digit_data.FRAME_PX - digit_data.INSIDE_PX) // 2
        for _, box, _ in boxes(scene, number):
            left, top = round(box[0] * digit_data.WIDTH), round(box[1] * digit_data.HEIGHT)
            _fill(picture, left, top, digit_data.FRAME_PX, digit_data.GREEN)
            _fill(picture, left + inside, top + inside, digit_data.INSIDE_PX, (0, 0, 0))
        for x1, y1, x2, y2 in scene.pillars:
            columns = slice(round(x1 * digit_data.WIDTH), round(x2 * digit_data.WIDTH))
            picture[round(y1 * digit_data.HEIGHT) : round(y2 * digit_data.HEIGHT), columns] = 90
        yield picture


def _fill(picture: Array, left: int, top: int, side: int, colour: tuple[int, int, int]) -> None:
    picture[max(0, top) : max(0, top + side), max(0, left) : max(0, left + side)] = colour


def counts_of(folder: Path, scene: MadeScene) -> tuple[Counter[str], list[str]]:
    """How often each thing is found to happen, and what in order."""
    folder.mkdir()
    video = write_video(folder / "scene.mp4", pictures(scene), round(scene.fps))
    zones: dict[str, object] = {
        name: [list(corner) for corner in shape] for name, shape in scene.zones.polygons.items()
    }
    zones |= {name: {"line": [list(end) for end in ends]} for name, ends in scene.zones.lines.items()}
    names = {f"e{number}": rule.name for number, rule in enumerate(scene.rules)}
    pipeline = {
        "source": {"video": str(video)},
        "steps": [{"infer": {"model": "cards"}}, {"track": {"lost": f"{LOST_S:g}s"}}, {"zones": zones}],
        "events": [{"name": name, "on": on} for name, on in names.items()],
    }
    with running_pipelines(folder, write_agent(folder), pipelines_text(folder, scene=pipeline)) as it:
        it.wait()
        status = it.runner.pipelines["scene"].status
    assert status.captured == status.frames["answered"] == scene.looks
    found = [f"{names[one['event']]} {one.get('direction', '')}".strip() for one in it.events("scene")]
    return Counter(found), found


def right_of(folder: Path, scene: MadeScene) -> tuple[int, int, list[str]]:
    """How many counts are right, of how many, and which are not."""
    found, _ = counts_of(folder, as_cards(scene))
    everybody = {"appear": len(scene.walkers), "leave": len(scene.walkers)}
    expected = Counter({**everybody, **scene.counts})
    keys = sorted(expected.keys() | found.keys())
    wrong = [
        f"{scene.name}: {key}: {found[key]} instead of {expected[key]}" for key in keys if found[key] != expected[key]
    ]
    return len(keys) - len(wrong), len(keys), wrong


@pytest.mark.slow
def test_a_stay_in_a_recording_lasts_as_long_as_it_was_recorded(tmp_path: Path) -> None:
    """Ten seconds are decoded in about one: who counted that would see nobody stay for two."""
    (scene,) = (one for one in SCENES if one.name in QUICK)
    right, total, wrong = right_of(tmp_path / "scene", scene)
    assert right == total, wrong


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_counts_of_sixteen_videos_are_right(tmp_path: Path) -> None:
    right = total = 0
    wrong: list[str] = []
    for number, scene in enumerate(SCENES):
        of_scene = right_of(tmp_path / str(number), scene)
        right, total, wrong = right + of_scene[0], total + of_scene[1], wrong + of_scene[2]
    print(json.dumps({"right": right, "of": total, "wrong": wrong}))
    assert right / total >= 0.95, wrong
