"""The dashboards and alert rules under examples/monitoring hold, and name only what the product has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "monitoring"
NAME = re.compile(r"(?<![\w:])upwell_\w+")
PAGES = ("policy", "operations", "uplink", "releases")


def expressions() -> Iterator[tuple[str, str]]:
    """Where each stands, and what it is."""
    for group in YAML(typ="safe").load(FOLDER / "rules.yaml")["groups"]:
        for rule in group["rules"]:
            yield f"rules.yaml: {rule.get('alert') or rule['record']}", rule["expr"]
    for path in sorted(FOLDER.glob("grafana-*.json")):
        board = json.loads(path.read_text())
        for variable in board["templating"]["list"]:
            yield f"{path.name}: {variable['name']}", variable["query"]
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]


def test_every_metric_that_a_panel_or_a_rule_names_is_in_the_reference() -> None:
    """Tests of the reference's pages hold them to what the product exports."""
    known = {name for page in PAGES for name in NAME.findall((ROOT / f"docs/{page}.md").read_text(encoding="utf-8"))}
    known |= {f"{name}_{part}" for name in known if name.endswith("_seconds") for part in ("bucket", "sum", "count")}
    known |= {f"{name}_{part}" for name in known if name.endswith("_rows") for part in ("bucket", "sum", "count")}
    found = {(place, name) for place, text in expressions() for name in NAME.findall(text)}
    assert len({name for _, name in found}) > 30
    assert sorted((place, name) for place, name in found if name not in known) == []


def test_every_recorded_series_that_a_rule_uses_is_recorded() -> None:
    recorded = {place.partition(": ")[2] for place, _ in expressions() if ":upwell_" in place or ": upwell:" in place}
    used = {name for _, text in expressions() for name in re.findall(r"\w+:\w+:\w+", text)}
    assert used <= recorded


def test_panels_of_a_dashboard_do_not_overlap() -> None:
    for path in sorted(FOLDER.glob("grafana-*.json")):
        taken: set[tuple[int, int]] = set()
        panels = json.loads(path.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        for at in (panel["gridPos"] for panel in panels):
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken
            assert max(x for x, _ in cells) < 24
            taken |= cells


@pytest.mark.parametrize("check", [("check", "rules", "rules.yaml"), ("test", "rules", "rules.test.yaml")])
def test_prometheus_takes_the_rules_and_they_fire_when_they_should(check: tuple[str, ...]) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed")
    said = subprocess.run([program, *check], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
