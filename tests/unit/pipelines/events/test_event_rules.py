"""When each kind of event happens, how often, in which order, and how rules are written."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.pipelines_scenes import rule_on
from upwell.pipelines.events.event_rules import EventRule, EventRules, FiredEvent
from upwell.pipelines.frame import FoundObject, Frame, Point, Scene
from upwell.pipelines.steps.geometry import Zones

ZONES = Zones({"door": ((0.4, 0.2), (0.6, 0.2), (0.6, 1.0), (0.4, 1.0))}, {"gate": ((0.0, 0.5), (1.0, 0.5))})
ALL = ("appear", "leave", "enter door", "exit door", "dwell door 2s", "cross gate")
NO_PICTURE = np.zeros((1, 1, 3), np.uint8)


def rules_on(*texts: str, zones: Zones = ZONES, lost_s: float = 1.0) -> EventRules:
    return EventRules([rule_on(text, name=text) for text in texts], zones, lost_s=lost_s)


def at(point: Point, track: int | None = 1, label: str = "person") -> FoundObject:
    """One whose anchor is at the point; its box is 0.1 wide and 0.2 high, so that the margin is 0.01 and 0.02."""
    x, y = point
    return FoundObject(label, 0.9, (x - 0.05, y - 0.2, x + 0.05, y), track)


def scene(at_s: float, *objects: FoundObject) -> Scene:
    return Scene(Frame(int(at_s * 10), at_s, 1e9 + at_s, NO_PICTURE, NO_PICTURE[:, :, 0]), NO_PICTURE, objects)


def said(fired: list[FiredEvent]) -> list[str]:
    return [f"{one.event} {one.direction}".strip() for one in fired]


def walk(rules: EventRules, *points: Point | None, start_s: float = 0.0) -> list[str]:
    """What happens to one who is at these points, one a second."""
    found = []
    for number, point in enumerate(points):
        found += said(rules.take(scene(start_s + number, *([] if point is None else [at(point)]))))
    return found


def test_one_walks_through_the_door_and_over_the_line() -> None:
    seen = walk(
        rules_on(*ALL),
        (0.1, 0.4), (0.5, 0.4), (0.5, 0.45), (0.5, 0.6), (0.5, 0.6), (0.9, 0.6), None, None, None,
    )  # fmt: skip
    assert seen == ["appear", "enter door", "cross gate in", "dwell door 2s", "exit door", "leave"]


def test_who_is_in_a_zone_at_first_sight_enters_it_and_who_goes_there_exits_it() -> None:
    assert walk(rules_on(*ALL), (0.5, 0.4), None, None, None) == ["appear", "enter door", "exit door", "leave"]


def test_who_comes_so_near_that_the_picture_cuts_off_the_feet_enters_and_stays() -> None:
    seen = walk(rules_on(*ALL), (0.5, 1.0), (0.5, 1.0), (0.5, 1.0), (0.5, 1.0), (0.9, 1.0))
    assert seen == ["appear", "enter door", "dwell door 2s", "exit door"]


def test_a_leave_says_what_was_seen_last_and_when_it_has_been_missed_for_long_enough() -> None:
    rules = rules_on("leave", lost_s=1.0)
    rules.take(scene(0.0, at((0.1, 0.4))))
    rules.take(scene(0.1, at((0.2, 0.4))))
    assert rules.take(scene(60.0)) == []  # the first look that misses it, however late that is
    assert rules.take(scene(61.0)) == []
    assert rules.take(scene(61.1)) == [FiredEvent("leave", (at((0.2, 0.4)),))]
    assert rules.take(scene(70.0)) == []


def test_who_is_seen_again_in_time_has_not_left() -> None:
    assert walk(rules_on(*ALL, lost_s=2.0), (0.5, 0.4), None, None, (0.5, 0.45)) == [
        "appear",
        "enter door",
        "dwell door 2s",
    ]


def test_the_end_of_the_source_is_everybodys_leave() -> None:
    rules = rules_on(*ALL)
    rules.take(scene(0.0, at((0.5, 0.4), 1), at((0.1, 0.4), 2)))
    rules.take(scene(0.1, at((0.5, 0.4), 1)))
    assert said(rules.end(0.2)) == ["exit door", "leave", "leave"]
    assert rules.end(0.3) == []


@pytest.mark.parametrize("way", [1, -1])
def test_a_box_that_trembles_at_an_edge_enters_and_exits_once(way: int) -> None:
    inside, outside = (0.405, 0.8), (0.392, 0.8)
    trembles = [inside, outside][::way] * 10
    assert walk(rules_on("enter door", "exit door"), (0.1, 0.8), *trembles) == ["enter door"]
    assert walk(rules_on("enter door", "exit door"), *trembles, (0.38, 0.8)) == ["enter door", "exit door"]


def test_a_box_that_trembles_on_the_line_crosses_as_often_as_it_truly_does() -> None:
    trembles = [(0.3, 0.49), (0.3, 0.51)] * 10
    assert walk(rules_on("cross gate"), (0.3, 0.3), *trembles, (0.3, 0.7)) == ["cross gate in"]
    assert walk(rules_on("cross gate"), (0.3, 0.3), *trembles, (0.3, 0.3)) == []
    assert walk(rules_on("cross gate"), (0.3, 0.7), *trembles, (0.3, 0.3)) == ["cross gate out"]


def test_who_vanishes_just_behind_the_line_has_crossed_it() -> None:
    rules = rules_on("cross gate", "leave")
    assert walk(rules, (0.3, 0.3), (0.3, 0.51)) == []
    assert said(rules.end(3.0)) == ["cross gate in", "leave"]


def test_who_was_hidden_while_crossing_has_crossed() -> None:
    assert walk(rules_on("cross gate", lost_s=3.0), (0.3, 0.3), None, None, (0.3, 0.7)) == ["cross gate in"]


def test_who_goes_around_the_end_of_a_line_has_not_crossed_it() -> None:
    zones = Zones({}, {"gate": ((0.0, 0.5), (0.5, 0.5))})
    assert walk(rules_on("cross gate", zones=zones), (0.3, 0.3), (0.8, 0.3), (0.8, 0.7), (0.3, 0.7)) == []


def test_a_dwell_happens_once_in_each_stay() -> None:
    rules = rules_on("dwell door 2s")
    assert walk(rules, *[(0.5, 0.4)] * 8) == ["dwell door 2s"]
    assert walk(rules, (0.1, 0.4), (0.5, 0.4), (0.5, 0.4), (0.1, 0.4), start_s=8) == []
    assert walk(rules, *[(0.5, 0.4)] * 3, start_s=12) == ["dwell door 2s"]


def test_frames_and_periods_need_no_tracks() -> None:
    rules = rules_on("frame", "every 10s")
    seen = {
        at_s: said(rules.take(scene(at_s, at((0.5, 0.4), None)))) for at_s in (3.0, 5.0, 12.9, 13.0, 22.0, 47.0, 52.9)
    }
    periods = [at_s for at_s, events in seen.items() if events == ["frame", "every 10s"]]
    assert periods == [3.0, 13.0, 47.0]  # counted from the first frame
    assert all(events[0] == "frame" for events in seen.values())
    assert rules.take(scene(60.0))[0] == FiredEvent("frame", ())


def test_objects_without_a_track_appear_nowhere() -> None:
    rules = rules_on(*ALL)
    assert [rules.take(scene(at_s, at((0.5, 0.4 + at_s / 10), None))) for at_s in range(4)] == [[]] * 4


def test_two_at_once_are_told_one_by_one_in_the_order_of_rules() -> None:
    rules = rules_on("enter door", "appear", "every 1s")
    fired = rules.take(scene(0.0, at((0.5, 0.4), 4), at((0.55, 0.4), 9)))
    assert [(one.event, [found.track for found in one.objects]) for one in fired] == [
        ("appear", [4]),
        ("enter door", [4]),
        ("appear", [9]),
        ("enter door", [9]),
        ("every 1s", [4, 9]),
    ]


def test_two_rules_on_the_same_are_both_told() -> None:
    rules = EventRules([rule_on("enter door", name="a"), rule_on("enter door", name="b")], ZONES)
    assert said(rules.take(scene(0.0, at((0.5, 0.4))))) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("frame", EventRule("n", "frame")),
        ("appear", EventRule("n", "appear")),
        ("leave", EventRule("n", "leave")),
        ("enter door", EventRule("n", "enter", zone="door")),
        (" exit  back-door ", EventRule("n", "exit", zone="back-door")),
        ("dwell door 1.5m", EventRule("n", "dwell", zone="door", dwell_s=90.0)),
        ("cross gate", EventRule("n", "cross", line="gate")),
        ("every 500ms", EventRule("n", "every", every_s=0.5)),
    ],
)
def test_a_rule_is_what_its_text_says(text: str, rule: EventRule) -> None:
    assert rule_on(text, name="n") == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("enter dor", "unknown zone dor; did you mean door?"),
        ("cross door", "unknown line door; expected one of gate"),
        ("cross gates", "unknown line gates; did you mean gate?"),
    ],
)
def test_zones_and_lines_must_exist(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message.replace('?', '[?]')}$"):
        rules_on(text)
    with pytest.raises(ValueError, match=r"there is none$"):
        rules_on(text, zones=Zones({}, {}))


def test_rules_without_conditions_import_no_package_for_them() -> None:
    script = (
        "import json, sys\nfrom upwell.pipelines.events.event_rules import EventRule, EventRules\n"
        "from upwell.pipelines.steps.geometry import Zones\n"
        "EventRules([EventRule('r', 'frame')], Zones({}, {}))\n"
        "print(json.dumps([name in sys.modules for name in ('cel_expr_python', 'scipy')]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, False]


def test_without_the_package_a_condition_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "upwell.pipelines.events.where_condition", None)
    with pytest.raises(ValueError, match=r"^`where` needs the package cel-expr-python: pip install 'upwell\[cel\]'"):
        EventRules([rule_on("frame", where="true")], ZONES)
