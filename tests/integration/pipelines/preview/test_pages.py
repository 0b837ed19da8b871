"""The preview over HTTP, beside the metrics of an agent."""

from __future__ import annotations

import http.client
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from prometheus_client import CollectorRegistry, Counter

from tests.unit.edge.agents import scene
from tests.unit.pipelines.preview.drawn_frames import FakePipeline, answered, person, picture
from upwell.edge.server.agent_assembly import serve_metrics
from upwell.pipelines.events.event_rules import EventRules
from upwell.pipelines.frame_outcome import AnsweredFrame, DroppedFrame
from upwell.pipelines.preview.preview import Preview, preview_pages
from upwell.pipelines.run.frame_loop import FrameLoop
from upwell.pipelines.sources.source_opening import open_source
from upwell.pipelines.sources.source_settings import FolderSettings
from upwell.pipelines.steps.geometry import Zones
from upwell.shared.telemetry.page_server import serve_pages

LIMIT_S = 10.0
HOSTILE = '../"><img src=x onerror=alert(1)>/#?%2e.json'
"""As the name of a pipeline, of a zone, and as a label."""


class Site:
    """A server of the pages, and a client that asks it."""

    def __init__(self) -> None:
        self.pipelines = {name: FakePipeline(name) for name in ("dock", HOSTILE)}
        self.previews: dict[str, Preview] = {name: one.preview for name, one in self.pipelines.items()}
        registry = CollectorRegistry()
        Counter("seen", "Something to scrape.", registry=registry)
        self._server = serve_pages("127.0.0.1", 0, registry, "agent.metrics", preview_pages(self.previews))
        self.port = self._server.server_port

    def get(self, path: str, host: str = "127.0.0.1", method: str = "GET") -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers with lower-case names, and body."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)) as connection:
            connection.request(method, path, headers={"Host": host})
            reply = connection.getresponse()
            return reply.status, {key.lower(): value for key, value in reply.getheaders()}, reply.read()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with closing(Site()) as site:
        yield site


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/preview", "text/html; charset=utf-8"),
        ("/preview/", "text/html; charset=utf-8"),
        ("/preview?draw=zones", "text/html; charset=utf-8"),
        ("/preview/app.js", "text/javascript; charset=utf-8"),
        ("/preview/picture.js", "text/javascript; charset=utf-8"),
        ("/preview/figures.js", "text/javascript; charset=utf-8"),
        ("/preview/drawing.js", "text/javascript; charset=utf-8"),
        ("/preview/style.css", "text/css; charset=utf-8"),
        ("/preview/icon.svg", "image/svg+xml"),
        ("/preview.json", "application/json; charset=utf-8"),
        ("/preview/dock.json", "application/json; charset=utf-8"),
    ],
)
def test_all_of_the_page_comes_from_this_address_and_may_load_nothing_else(
    site: Site, path: str, content_type: str
) -> None:
    status, headers, body = site.get(path)
    assert (status, headers["content-type"], len(body) > 0) == (200, content_type, True)
    rules = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'none'"
    assert {source for rule in rules.values() for source in rule.split()} <= {"'self'", "'none'", "'script'", "blob:"}
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    assert b"://" not in body.replace(b"http://www.w3.org/2000/svg", b"")


def test_a_frame_is_seen_as_json_and_as_jpeg(site: Site) -> None:
    assert site.get("/preview/dock.jpg")[0] == 404
    site.pipelines["dock"].preview.note(answered(12, [person((0.5, 0.5, 0.75, 1.0), 4)]))
    document = json.loads(site.get("/preview/dock.json")[2])
    assert (document["frame"]["number"], document["objects"][0]["box"]) == (12, [0.5, 0.5, 0.75, 1.0])
    for path in ("/preview/dock.jpg?frame=12", "/preview/dock.jpg", "/preview/dock.jpg?frame=x"):
        status, headers, body = site.get(path)
        assert (status, headers["content-type"]) == (200, "image/jpeg")
        assert Image.open(io.BytesIO(body)).size == (320, 240)
    assert site.get("/preview/dock.jpg?frame=11")[0] == 404


def test_a_name_and_a_label_full_of_markup_are_what_they_are(site: Site) -> None:
    found = person((0.1, 0.1, 0.2, 0.2), 1)
    site.pipelines[HOSTILE].preview.note(answered(1, [found.__class__(HOSTILE, 0.5, found.box)]))
    assert HOSTILE in json.loads(site.get("/preview.json")[2])["pipelines"]
    status, headers, body = site.get(f"/preview/{quote(HOSTILE, safe='')}.json")
    assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(body)["objects"][0]["label"] == HOSTILE
    assert site.get(f"/preview/{quote(HOSTILE, safe='')}.jpg")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/preview/other.json", "/preview/dock", "/preview/dock.png", "/preview/../pages.py", "/preview/%2e%2e/pages.py",
        "/preview/index.html", "/preview//etc/passwd", "/preview/%ff.json", "/preview/.json", "/preview/app.js/",
    ],
)  # fmt: skip
def test_there_is_nothing_else_to_be_had(site: Site, path: str) -> None:
    status, _, body = site.get(path)
    assert (status, body) == (404, b"not here, or not any more\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_pages_are_read_only(site: Site, method: str) -> None:
    for path in ("/preview", "/preview.json", "/preview/dock.json"):
        status, headers, body = site.get(path, method=method)
        assert (status, headers["allow"], body) == (405, "GET", b"this page answers GET only\n")
    assert site.get("/metrics", method=method)[0] == 405


@pytest.mark.parametrize(
    "host", ["example.com", "example.com:9464", "localhost.example.com", "", "unix:x", "10.0.0.1:80", "[::ffff:a00:1]"]
)
def test_a_web_site_that_points_its_own_name_here_gets_no_picture(site: Site, host: str) -> None:
    for path in ("/preview", "/preview.json", "/preview/dock.jpg", "/preview/dock.json"):
        status, _, body = site.get(path, host)
        assert (status, body) == (403, b"the preview is for 127.0.0.1 and localhost\n")
    assert site.get("/metrics", host)[0] == 200


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]", "[::1]:80"])
def test_who_calls_this_machine_by_its_own_names_is_answered(site: Site, host: str) -> None:
    assert site.get("/preview.json", host)[0] == 200


def test_an_agent_serves_them_beside_its_metrics_and_its_health() -> None:
    pages = preview_pages({"dock": FakePipeline().preview})
    with scene("defaults: {deadline: 20s}") as at:
        address = serve_metrics(at.agent, "127.0.0.1:0", pages).removesuffix("/metrics").removeprefix("http://")
        told = {}
        for path in ("/health", "/preview.json", "/metrics"):
            with closing(http.client.HTTPConnection(address, timeout=LIMIT_S)) as connection:
                connection.request("GET", path)
                reply = connection.getresponse()
                told[path] = (reply.status, reply.getheader("Content-Type", "").partition(";")[0], reply.read())
    assert told["/health"][:2] == (200, "application/json")
    assert "models" in json.loads(told["/health"][2])
    assert told["/preview.json"] == (200, "application/json", b'{"pipelines": ["dock"]}')
    assert told["/metrics"][:2] == (200, "text/plain")


def test_a_running_pipeline_shows_its_frames(tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(picture([(0.0, 0.0, 0.5, 0.5)])).save(tmp_path / f"{number}.png")
    settings = FolderSettings(tmp_path, watch=False, answered="leave", settle_s=0.0)
    shown: list[Preview] = []

    def show(one: AnsweredFrame | DroppedFrame) -> None:
        assert isinstance(one, AnsweredFrame)
        shown[0].note(one)

    with FrameLoop("dock", open_source(settings), (), EventRules((), Zones({}, {})), publish=show) as pipeline:
        shown.append(Preview("dock", {}, {}, lambda: pipeline.status))
        numbers = [one.scene.frame.number for one in pipeline]
        document = shown[0].document()
    assert len(numbers) == 3
    assert (document["frame"]["number"], document["answered"], document["captured"]) == (numbers[-1], 3, 3)
    assert document["latency_ms"]["count"] == 3
    assert document["source"]["decoder"] == "folder"
    assert np.asarray(Image.open(io.BytesIO(shown[0].picture() or b"")))[10, 10, 0] > 190


def test_pipelines_come_and_go_and_the_metrics_stay_where_they_are(site: Site) -> None:
    assert site.get("/preview/new.json")[0] == 404
    site.previews["new"] = FakePipeline("new").preview
    assert site.get("/preview/new.json")[0] == 200
    del site.previews["new"]
    assert site.get("/preview/new.json")[0] == 404
    assert b"seen_total" in site.get("/metrics")[2]
