"""docs/operations.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from upwell.cloud.observe.metrics import FAMILIES, MAX_CLIENTS
from upwell.edge.request import request_spans
from upwell.shared.telemetry.otlp import MAX_WAITING

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_metric_is_in_the_table_as_it_is() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.splitlines()
        if line.startswith("| `upwell_cloud_")  # the others are an agent's: see test_docs
    ]
    said = {name.strip("`"): (tuple(re.findall(r"`(\w+)`", labels)), text) for name, labels, text in rows}
    assert said == {
        name + ("_total" if family.kind == "counter" else ""): (family.labels, family.text)
        for name, family in FAMILIES.items()
    }


def test_every_span_is_in_the_tree_and_the_limits_are_these() -> None:
    sources = [ROOT / "cloud/upwell/cloud" / name for name in ("observe/telemetry.py", "service/cloud_service.py")]
    of_cloud = set(re.findall(r'"(upwell\.cloud\.[a-z]+)"', "".join(path.read_text() for path in sources)))
    of_agent = {
        request_spans.REQUEST,
        request_spans.DECIDE,
        request_spans.EDGE,
        request_spans.HEAD,
        request_spans.UPLINK,
    }
    assert set(re.findall(r"upwell\.(?:agent|cloud)\.[a-z]+", PAGE)) == of_cloud | of_agent
    assert f"queue of {MAX_WAITING} requests" in " ".join(PAGE.split())
    assert f"After {MAX_CLIENTS} names" in " ".join(PAGE.split())
