"""An event as a line of JSON: these keys, and only what JSON can say."""

from __future__ import annotations

import json
import math

import numpy as np

from upwell.pipelines.events.event_rules import Event
from upwell.pipelines.frame import FoundObject

PERSON = FoundObject(
    "person",
    0.87654321,
    (0.123456, 0.2, 1 / 3, 1.0),
    7,
    frozenset({"door"}),
    {"helmet": {"label": "none", "score": 0.5}},
)
EVENT = Event("e-1", "dock", "no-helmet", 3, 1.7e9 + 0.1234567, 41.23456, (PERSON,), "edge", "confident")


def test_a_line_has_these_keys_in_this_order_and_boxes_of_4_digits() -> None:
    assert EVENT.as_json() == (
        '{"id":"e-1","pipeline":"dock","event":"no-helmet","sequence":3,"captured_unix_s":1700000000.123457,'
        '"latency_ms":41.235,"objects":[{"label":"person","score":0.8765,"box":[0.1235,0.2,0.3333,1.0],"track":7,'
        '"helmet":{"label":"none","score":0.5}}],"route":"edge","reason":"confident","degraded":false,"amends":null}'
    )


def test_an_amendment_names_what_it_amends_and_a_crossing_its_direction() -> None:
    line = json.loads(Event("e-2", "dock", "count", 4, 0.0, 0.0, amends="e-1", direction="in").as_json())
    assert (line["amends"], line["direction"], line["objects"]) == ("e-1", "in", [])
    assert "direction" not in json.loads(EVENT.as_json())


def test_whatever_models_say_it_is_one_line_of_json() -> None:
    odd = FoundObject(
        "pers\nön\ud800",
        float("nan"),
        (np.float32(0.5), 0.0, math.inf, 1.0),  # as a model may give them
        answers={"a": {"deep": [{"x": math.nan}, (1.5, None, True)]}, "label": {"label": "not over the object's own"}},
    )
    line = Event("e", "p", "e", 0, 0.0, 0.0, (odd,)).as_json()
    assert "\n" not in line
    assert line.isascii()
    (found,) = json.loads(line)["objects"]
    assert found == {
        "label": "pers\nön\ud800",
        "score": None,
        "box": [0.5, 0.0, None, 1.0],
        "track": None,
        "a": {"deep": [{"x": None}, [1.5, None, True]]},
    }
