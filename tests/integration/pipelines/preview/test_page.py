"""The page of the preview in a real browser: what it shows, at which width, by keyboard, in dark and light."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from ruamel.yaml import YAML

from tests.integration.pipelines.preview.browser import CHROMIUM, DRIVER, Browser
from tests.unit.pipelines.preview.drawn_frames import FakePipeline, answered, person
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.zone_shapes import LineSection
from upwell.pipelines.frame import Box, FoundObject
from upwell.pipelines.preview.preview import preview_pages
from upwell.pipelines.sources.base import SourceState
from upwell.shared.telemetry.page_server import serve_pages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(None in (CHROMIUM, DRIVER), reason="chromium and chromium-driver are not installed"),
]

AXE = os.environ.get("UPWELL_AXE")
"""The path of axe.min.js, from the package axe-core of npm."""

PIPELINES = """version: 1
pipelines:
  dock:
    source: {{video: dock.mp4}}
    steps:
      - infer: {{model: people}}
      - track: {{}}
      - {step}
    events: [{{name: count, on: cross gate}}, {{name: in, on: enter true}}]
    sinks: [{{jsonl: events.jsonl}}]
"""
"""Into which what was drawn is pasted."""

HOSTILE = '<img src=x onerror="document.title=1"></script>' + "W" * 60
BOXES: list[Box] = [(0.125, 0.25, 0.375, 0.75), (0.7, 0.0, 0.9, 0.3)]


class Site:
    """Pipelines whose pages are served; `stop` and `start` are the agent going away and coming back."""

    def __init__(self, *names: str) -> None:
        self.pipelines = {name: FakePipeline(name) for name in names}
        self._port = 0
        self.start()

    def start(self) -> None:
        pages = preview_pages({name: one.preview for name, one in self.pipelines.items()})
        self._server = serve_pages("127.0.0.1", self._port, CollectorRegistry(), "agent.metrics", pages)
        self._port = self._server.server_port
        self.url = f"http://127.0.0.1:{self._port}/preview"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    close = stop


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with closing(Browser(tmp_path_factory.mktemp("browser"))) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """It is wide and light, has nothing open, and must have had nothing to complain about."""
    chromium.look(1280)
    yield chromium
    chromium.open("about:blank")
    assert chromium.complaints() == []


@pytest.fixture
def site() -> Iterator[Site]:
    with closing(Site("dock")) as site:
        yield site


def people(*boxes: Box) -> list[FoundObject]:
    return [person(box, number) for number, box in enumerate(boxes, 1)]


def show(browser: Browser, site: Site, number: int, *boxes: Box) -> None:
    """Have the page show this frame."""
    site.pipelines["dock"].preview.note(answered(number, people(*boxes)))
    browser.until(f"document.querySelector('.about')?.textContent.startsWith('Frame {number},')")


def drawn_boxes(browser: Browser) -> list[list[float]]:
    """The boxes on the page, as fractions of the picture as it is displayed."""
    boxes: list[list[float]] = browser.run(
        """const place = document.querySelector(".stage img").getBoundingClientRect();
        return [...document.querySelectorAll("rect.box")].map((one) => {
          const box = one.getBBox(), at = one.getScreenCTM();
          const x = box.x * at.a + at.e - place.x, y = box.y * at.d + at.f - place.y;
          return [x, y, x + box.width * at.a, y + box.height * at.d]
            .map((side, index) => side / (index % 2 ? place.height : place.width));
        })"""
    )
    return boxes


@pytest.mark.parametrize("width", [360, 1280])
def test_boxes_lie_where_the_objects_of_the_picture_are(browser: Browser, site: Site, width: int) -> None:
    browser.look(width)
    browser.open(site.url)
    show(browser, site, 1, (0.5, 0.5, 0.6, 0.6))
    show(browser, site, 2, *BOXES)
    for drawn, box in zip(drawn_boxes(browser), BOXES, strict=True):
        assert drawn == pytest.approx(list(box), abs=0.002)
    colours = browser.run(
        """const canvas = document.createElement("canvas"), image = document.querySelector(".stage img");
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        const context = canvas.getContext("2d", {willReadFrequently: true});
        context.drawImage(image, 0, 0);
        return arguments[0].map(([x, y]) => context.getImageData(x * canvas.width, y * canvas.height, 1, 1).data[0])""",
        [((x1 + x2) / 2, (y1 + y2) / 2) for x1, y1, x2, y2 in [*BOXES, (0.4, 0.4, 0.6, 0.6)]],
    )
    assert colours == pytest.approx([205, 205, 70], abs=12)  # both objects, and the ground between them


def test_a_track_leaves_a_trail_of_the_places_where_it_stood(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    for number in range(3):
        show(browser, site, number, (0.1 + number / 10, 0.2, 0.2 + number / 10, 0.5))
    width, height = browser.run("const s = document.querySelector('.stage'); return [s.clientWidth, s.clientHeight]")
    points = browser.run("return document.querySelector('polyline.trail').getAttribute('points')").split()
    seen = [tuple(float(part) for part in point.split(",")) for point in points]
    expected = [((0.15 + number / 10) * width, 0.5 * height) for number in range(3)]
    assert seen == [pytest.approx(point, abs=0.1) for point in expected]


def test_the_table_says_of_each_object_what_the_picture_shows(browser: Browser, site: Site) -> None:
    other = FoundObject("forklift", 0.5, BOXES[1])
    site.pipelines["dock"].preview.note(answered(1, [other, person(BOXES[0], 3)]))
    browser.open(site.url)
    browser.until("document.querySelectorAll('tbody tr').length === 2")
    rows = browser.run(
        "return [...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(one => one.textContent))"
    )
    assert rows == [
        ["person 0.91; helmet: none 0.88", "3", "door", "helmet: cloud, low_confidence"],
        ["forklift 0.50", "–", "–", "edge, confident"],
    ]
    labels = browser.run("return [...document.querySelectorAll('.overlay text')].map(one => one.textContent)")
    assert labels == ["door", "gate", "forklift 0.50", "person #3 0.91"]
    assert browser.run("return document.querySelectorAll('rect.box.cloud').length") == 1
    about = browser.run("return document.querySelector('.about').textContent").split(" · ")
    assert about[1:] == ["answered in 41 ms", "edge, confident"]


def test_figures_have_a_sparkline_each_and_a_reason_has_one_once_it_counts(browser: Browser, site: Site) -> None:
    pipeline = site.pipelines["dock"]
    browser.open(site.url)
    shown = (
        "Object.fromEntries([...document.querySelectorAll('.figures > div')].map(one => [one.querySelector('dt')"
        ".textContent, [...one.querySelectorAll('span, small')].map(part => part.textContent)]))"
    )
    browser.until("document.querySelector('.figures dt')")
    figures = browser.run(f"return {shown}")
    assert figures["Latency, median"][0] == "50 ms"
    assert figures["Latency, 99 %"][0] == "99 ms"
    assert figures["Dropped: late"][1] == "3 in all"
    assert "Dropped: superseded" not in figures
    pipeline.count(superseded=40, answered=95)
    browser.until(f"({shown})['Dropped: superseded']?.[1] === '40 in all'")
    browser.until("[...document.querySelectorAll('.figures polyline')].every(one => one.points.length >= 1)")
    rate = float(browser.run(f"return ({shown})['Dropped: superseded'][0]").removesuffix("/s"))
    assert 0 < rate <= 40 / 0.95


def test_no_frame_a_lost_source_and_a_lost_connection_are_said(browser: Browser, site: Site) -> None:
    message = "document.querySelector('.message:not([hidden])')?.textContent"
    pipeline = site.pipelines["dock"]
    browser.open(site.url)
    browser.until(f"{message} === 'No frame yet.'")
    pipeline.source(state=SourceState.LOST, explained="nothing came for 10 s")
    browser.until(f"{message} === 'No frame yet. Source lost: nothing came for 10 s'")
    announced = "document.querySelector('[role=status]').textContent"
    assert browser.until(announced) == "dock: source lost: nothing came for 10 s"
    show(browser, site, 1, *BOXES)
    browser.until(f"{message} === 'Source lost: nothing came for 10 s'")
    pipeline.source(state=SourceState.LIVE, explained="")
    browser.until(f"{message} === undefined")
    site.stop()
    said = browser.until("document.querySelector('#connection.lost')?.textContent")
    assert said.startswith("Connection lost at ")
    assert said.endswith("Trying again.")
    assert browser.run(f"return {announced}") == said
    site.start()
    browser.until("document.querySelector('#connection').textContent === 'Connected.'")
    show(browser, site, 2, *BOXES)


def test_pipelines_come_and_go_on_the_open_page(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    headings = "[...document.querySelectorAll('h2')].map(one => one.textContent).join()"
    browser.until(f"{headings} === 'dock'")
    site.stop()
    site.pipelines = {"yard": FakePipeline("yard")}
    site.start()
    browser.until(f"{headings} === 'yard'")
    site.stop()
    site.pipelines = {}
    site.start()
    browser.until("document.querySelector('main').textContent === 'No pipeline has a preview.'")


@pytest.mark.parametrize("query", ["", "?draw=zones"])
def test_nothing_scrolls_sideways_on_a_phone_whatever_names_are_like(browser: Browser, query: str) -> None:
    with closing(Site("dock", HOSTILE)) as site:
        pipeline = site.pipelines[HOSTILE]
        answers = {HOSTILE: {"label": HOSTILE, "route": HOSTILE, "reason": HOSTILE}}
        found = FoundObject(HOSTILE, 0.5, BOXES[1], 10**9, frozenset({HOSTILE}), answers)
        pipeline.preview.note(answered(1, [found]))
        pipeline.source(state=SourceState.LOST, explained="x" * 300)
        pipeline.count(**{HOSTILE: 5})
        pipeline.status = replace(pipeline.status, events={HOSTILE: 1}, last_failure=HOSTILE)
        browser.look(360)
        browser.open(site.url + query)
        browser.until("document.querySelector('rect.box')")
        assert browser.run("return [document.documentElement.scrollWidth, innerWidth]") == [360, 360]
        beyond = browser.run(
            """return [...document.querySelectorAll("body *:not(svg *)")]
            .filter(one => getComputedStyle(one).display !== "inline")
            .filter(one => one.getBoundingClientRect().right > 360.5 || one.scrollWidth > Math.max(one.clientWidth, 1))
            .map(one => one.outerHTML.slice(0, 200))"""
        )
        assert beyond == []


def test_markup_in_names_and_labels_is_shown_as_it_is_written(browser: Browser) -> None:
    with closing(Site(HOSTILE)) as site:
        pipeline = site.pipelines[HOSTILE]
        answers = {HOSTILE: {"label": HOSTILE, "route": HOSTILE, "reason": HOSTILE}}
        found = FoundObject(HOSTILE, 0.5, BOXES[0], 1, frozenset({HOSTILE}), answers)
        pipeline.preview.note(answered(1, [found]))
        pipeline.source(state=SourceState.LOST, explained=HOSTILE, decoder=HOSTILE)
        pipeline.count(**{HOSTILE: 1})
        pipeline.status = replace(pipeline.status, events={HOSTILE: 1}, last_failure=HOSTILE)
        browser.open(site.url)
        browser.until("document.querySelector('rect.box')")
        texts = ("h2", ".source", ".message", "td", "td:nth-child(3)", "td:nth-child(4)", ".events", ".failure")
        for selector in texts:
            assert HOSTILE in browser.run("return document.querySelector(arguments[0]).textContent", selector), selector
        terms = browser.run("return [...document.querySelectorAll('dt')].map(one => one.textContent)")
        assert f"Dropped: {HOSTILE}" in terms
        tags = browser.run("return [...new Set([...document.querySelectorAll('main *')].map(one => one.localName))]")
        assert not {"script", "a", "iframe"} & set(tags)
        assert browser.run("return [document.images.length, document.title]") == [1, "Upwell preview"]


def focus_of(browser: Browser) -> Any:
    """Name, style and width of the outline of what has the focus; None where nothing has."""
    return browser.run(
        """const one = document.activeElement, style = getComputedStyle(one);
        if (one === document.body) return null;
        return [one.id || one.name || one.className || one.localName, style.outlineStyle, style.outlineWidth]"""
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["mode", "pause"]),
        ("?draw=zones", ["mode", "pause", "stage", "kind", "name", "", "undo", "clear", "pre", "copy"]),
    ],
)
def test_the_tabulator_reaches_all_that_can_be_used_in_the_order_of_the_page(
    browser: Browser, site: Site, query: str, expected: list[str]
) -> None:
    browser.open(site.url + query)
    show(browser, site, 1, *BOXES)
    if query:  # with a shape there is something to copy
        draw_by_keyboard(browser)
        browser.run("document.querySelector('h1').tabIndex = -1; document.querySelector('h1').focus()")
    reached = []
    for _ in expected:
        browser.press("Tab")
        reached.append(focus_of(browser))
    assert [one[0] for one in reached] == [name or "button" for name in expected]
    assert all(one[1:] == ["solid", "3px"] for one in reached)


def draw_by_keyboard(browser: Browser) -> None:
    """A triangle, with the corners 0.5, 0.5 and 0.52, 0.5 and 0.52, 0.501, which the first corner closes."""
    browser.run("document.querySelector('.stage').focus()")
    browser.press("Enter", "ArrowRight", "ArrowRight", "Enter")
    browser.press("ArrowDown", held="Shift")
    browser.press("Enter", "ArrowLeft", "ArrowLeft")
    browser.press("ArrowUp", held="Shift")
    browser.press("Enter")


def yaml_of(browser: Browser) -> Any:
    return YAML(typ="safe").load(browser.run("return document.querySelector('code').textContent"))


def test_a_zone_is_drawn_by_keyboard_alone(browser: Browser, site: Site) -> None:
    browser.open(f"{site.url}?draw=zones")
    browser.until("document.querySelector('.stage[tabindex]')")
    draw_by_keyboard(browser)
    assert yaml_of(browser) == {"zones": {"zone1": [[0.5, 0.5], [0.52, 0.5], [0.52, 0.501]]}}
    browser.press("ArrowDown", "Enter", "Backspace", "Backspace", "Backspace")  # opens the zone and takes a corner back
    assert yaml_of(browser) == "Nothing is drawn yet."
    assert browser.run("return document.querySelectorAll('circle.corner').length") == 2


def test_zones_and_lines_are_drawn_by_clicks_and_their_text_is_to_paste(browser: Browser, site: Site) -> None:
    browser.open(f"{site.url}?draw=zones")
    show(browser, site, 1, *BOXES)
    left, top, width, height = browser.run(
        "const {x, y, width, height} = document.querySelector('.stage').getBoundingClientRect(); "
        "return [x, y, width, height]"
    )

    def click(*points: tuple[float, float]) -> None:
        for x, y in points:
            browser.click(left + x * width, top + y * height)

    def press(selector: str) -> None:
        browser.run("document.querySelector(arguments[0]).click()", selector)

    corners = [(0.4, 0.2), (0.6, 0.2), (0.6, 0.9), (0.4, 0.9)]
    browser.run("document.querySelector('[name=name]').value = 'true'")
    click(*corners, (0.402, 0.203))  # near the first one, which closes it
    press("[value=line]")
    browser.run("document.querySelector('[name=name]').value = 'gate'")
    click((0.1, 0.5), (0.9, 0.5))
    drawn = yaml_of(browser)["zones"]
    assert list(drawn) == ["true", "gate"]
    assert [tuple(point) for point in drawn["true"]] == [pytest.approx(point, abs=1.5 / height) for point in corners]
    assert [tuple(point) for point in drawn["gate"]["line"]] == [
        pytest.approx(point, abs=1.5 / height) for point in ((0.1, 0.5), (0.9, 0.5))
    ]
    assert all(round(part, 3) == part for point in drawn["true"] for part in point)
    said = "document.querySelector('.said').textContent"
    browser.run("document.querySelector('[name=name]').value = 'gate'")
    click((0.1, 0.6), (0.9, 0.6))
    assert browser.run(f"return {said}") == "There is a shape named gate already."
    press("[name=undo]")
    press("[name=undo]")
    browser.devtools("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    press("[name=copy]")
    browser.until(f"{said} === 'Copied.'")
    copied = browser.run("return navigator.clipboard.readText()")
    config, _ = parse_pipelines(PIPELINES.format(step=copied), Path("pipelines.yaml"))
    zones = config.pipelines["dock"].steps[2].zones
    assert zones is not None
    assert zones["true"] == tuple(tuple(point) for point in drawn["true"])
    assert isinstance(zones["gate"], LineSection)
    press("[name=clear]")
    assert yaml_of(browser) == "Nothing is drawn yet."


def test_dark_and_light_follow_what_the_user_prefers(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    looks = []
    for scheme in ("light", "dark"):
        browser.look(1280, scheme)
        looks.append(
            browser.run("const one = getComputedStyle(document.body); return [one.backgroundColor, one.color]")
        )
    assert looks == [["rgb(255, 255, 255)", "rgb(22, 25, 29)"], ["rgb(18, 20, 23)", "rgb(236, 239, 242)"]]


def test_who_prefers_less_motion_sees_a_picture_a_second(browser: Browser, site: Site) -> None:
    browser.look(1280, motion="reduce")
    browser.open(site.url)
    asked = "performance.getEntriesByType('resource').filter(one => one.name.endsWith('dock.json'))"
    browser.until(f"{asked}.length >= 4")
    starts = browser.run(f"return {asked}.map(one => one.startTime)")
    assert min(later - before for before, later in pairwise(starts)) >= 990


def test_a_paused_page_asks_for_nothing_until_it_goes_on(browser: Browser, site: Site) -> None:
    browser.open(site.url)
    show(browser, site, 1, *BOXES)
    browser.press("Tab", "Tab", "Enter")
    browser.until("document.querySelector('#connection').textContent === 'Paused.'")
    asked = "performance.getEntriesByType('resource').length"
    calm = f"new Promise(done => {{ const n = {asked}; setTimeout(() => done({asked} - n), 1000) }})"
    browser.run(f"return {calm}")  # what was under way
    assert browser.run(f"return {calm}") == 0
    browser.press("Enter")
    show(browser, site, 2, *BOXES)
    assert browser.run("return document.querySelector('#connection').textContent") == "Connected."


@pytest.mark.skipif(AXE is None, reason="UPWELL_AXE is not set to the path of axe.min.js")
@pytest.mark.parametrize("query", ["", "?draw=zones"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_nothing_to_complain_about(browser: Browser, query: str, scheme: str, width: int) -> None:
    assert AXE is not None
    with closing(Site("dock", "yard")) as site:
        site.pipelines["dock"].preview.note(answered(1, people(*BOXES)))
        site.pipelines["yard"].source(state=SourceState.LOST, explained="nothing came for 10 s", reconnects=2)
        browser.look(width, scheme)
        browser.open(site.url + query)
        browser.until("document.querySelectorAll('rect.box').length === 2 && document.querySelector('.source.lost')")
        if query:
            draw_by_keyboard(browser)
        browser.devtools("Runtime.evaluate", expression=Path(AXE).read_text())
        found = browser.run("return axe.run(document).then(({violations, passes}) => [violations, passes.length])")
        assert [f"{one['id']}: {[node['html'][:120] for node in one['nodes']]}" for one in found[0]] == []
        assert found[1] > 20
