"""Pictures go up as small as the cloud's model makes them: its answers stay, and the bytes are counted."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from onnx import helper
from PIL import Image

from tests.faults.scene import until, write_agent
from tests.integration.agent.harness import scraped
from tests.integration.cloud.serving import serving
from tests.photographs import photograph
from tests.unit.models_for_tests import save, tensor
from upwell.edge import Answer
from upwell.edge.observe.cloud_model_check import CloudModels
from upwell.edge.observe.explain_text import tell
from upwell.edge.observe.flight_recorder import FlightRecorder
from upwell.edge.server.agent_assembly import embedded_agent, serve_metrics
from upwell.edge.server.agent_core import AgentCore
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.introspection import Seen
from upwell.shared.routing.decide.router_state import CloudAnswered, PicturesPrepared
from upwell.shared.routing.estimators.preparation_times import EncodedPictures
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import ASSETS, pages

PHOTO = Image.fromarray(photograph("flower.jpg")).resize((1280, 854), Image.Resampling.BICUBIC)
GRID = 24, 32
SEEN = 96, 128
"""What each side makes of a picture: height and width. The cloud's model answers with the mean of each 4 x 4 pixels."""
JPEG_BOUND = 5 / 255
"""How far such a mean may be off where a JPEG was encoded again."""
UP: dict[str, Any] = {"rules": [{"name": "up", "match": {}, "route": "cloud"}], "defaults": {"deadline": "20s"}}


def write_model(folder: Path, size: tuple[int, int], fit: str, uplink: str = "") -> None:
    folder.mkdir(parents=True)
    pool = size[0] // GRID[0]
    nodes = [
        helper.make_node("AveragePool", ["x"], ["pooled"], kernel_shape=[pool, pool], strides=[pool, pool]),
        helper.make_node("Identity", ["pooled"], ["grid"]),
    ]
    outputs = [tensor("grid", ("rows", 3, *GRID))]
    save(folder / "model.onnx", nodes, [tensor("x", ("rows", 3, *size))], outputs)
    (folder / "model.yaml").write_text(
        "version: 1\n"
        f"signature: {{inputs: {{image: {{kind: image{uplink}}}}}, outputs: {{grid: {{kind: embedding}}}}}}\n"
        f"pre: [decode: image, resize: {{to: [{size[0]}, {size[1]}], fit: {fit}}}, normalize: {{}}, layout: NCHW]\n"
    )


def encoded(form: str) -> bytes:
    file = io.BytesIO()
    PHOTO.save(file, form, **({"quality": 92} if form == "JPEG" else {}))
    return file.getvalue()


@contextmanager
def scene(folder: Path, fit: str = "stretch", uplink: str = "") -> Iterator[tuple[AgentCore, str]]:
    """An agent before a real service, once it has been told what there is to be told, and its metrics' address."""
    write_model(folder / "cloud" / "grids" / "1", SEEN, fit)
    write_model(folder / "edge", GRID, fit, uplink)
    with serving("--models", folder / "cloud") as service:
        models = {"grids": {"edge": {"file": "edge/model.onnx"}, "cloud": {"model": "grids"}}}
        with embedded_agent(write_agent(folder, UP, service.address, models)) as agent:
            until(lambda: "grids" in known(agent))
            yield agent, serve_metrics(agent, "127.0.0.1:0")


def ask(agent: AgentCore, picture: bytes | Array) -> Answer:
    answer = agent.infer("grids", {"image": picture})
    assert answer.route == "cloud"
    return answer


def known(agent: AgentCore) -> dict[str, Seen]:
    """What the agent knows of the models in the cloud."""
    return cast(dict[str, Seen], agent._context.seen)


def asked_of(agent: AgentCore) -> CloudModels:
    assert agent._cloud_models is not None
    return agent._cloud_models


def sent_bytes(metrics: str) -> float:
    return scraped(metrics)["upwell_uplink_bytes_total{model=grids}"]


def grids(agent: AgentCore, metrics: str, picture: bytes | Array) -> tuple[Array, Array, float]:
    """What the cloud says of the picture as it came, of the one that goes up, and the bytes of the latter."""
    seen = known(agent)
    told, seen["grids"] = seen["grids"], Seen(seen["grids"].digest)
    whole = ask(agent, picture).outputs["grid"]
    seen["grids"] = told
    before = sent_bytes(metrics)
    small = ask(agent, picture).outputs["grid"]
    return whole, small, sent_bytes(metrics) - before


@pytest.mark.parametrize("fit", ["stretch", "contain", "cover"])
def test_a_png_goes_up_small_and_the_answer_is_the_same(tmp_path: Path, fit: str) -> None:
    with scene(tmp_path, fit) as (agent, metrics):
        data = encoded("PNG")
        whole, small, size_bytes = grids(agent, metrics, data)
        assert size_bytes < len(data) / 40
        assert np.array_equal(whole, small)


def test_a_picture_that_takes_too_long_to_decode_goes_up_as_it_is(tmp_path: Path) -> None:
    with scene(tmp_path) as (agent, metrics):
        data = encoded("PNG")
        ask(agent, data)
        before = sent_bytes(metrics)
        assert before < len(data) / 40
        agent.router.observe(PicturesPrepared("grids", EncodedPictures("png", 1280 * 854), 60.0))
        ask(agent, data)
        assert sent_bytes(metrics) - before > len(data)


def test_a_jpeg_goes_up_small_and_the_answer_is_nearly_the_same(tmp_path: Path) -> None:
    with scene(tmp_path) as (agent, metrics):
        data = encoded("JPEG")
        whole, small, size_bytes = grids(agent, metrics, data)
        assert size_bytes < len(data) / 10
        assert 0 < np.abs(whole - small).max() <= JPEG_BOUND
        assert np.abs(whole - small).mean() <= 1 / 255


def test_pixels_go_up_small_and_the_answer_is_the_same(tmp_path: Path) -> None:
    with scene(tmp_path) as (agent, metrics):
        pixels = np.asarray(PHOTO)
        whole, small, size_bytes = grids(agent, metrics, pixels)
        assert size_bytes < SEEN[0] * SEEN[1] * 3 + 1000
        assert np.array_equal(whole, small)


def test_what_is_written_in_model_yaml_comes_first(tmp_path: Path) -> None:
    """A side of its own, and an encoding, for which the cloud's size holds all the same."""
    with scene(tmp_path / "side", uplink=", uplink: {max_side: 640}") as (agent, metrics):
        assert grids(agent, metrics, encoded("JPEG"))[2] > 25_000
    with scene(tmp_path / "form", uplink=", uplink: {encode: webp, quality: 80, recode: true}") as (agent, metrics):
        assert grids(agent, metrics, encoded("JPEG"))[2] < 3_000


def test_a_new_model_in_the_cloud_is_asked_again_before_anything_is_shrunk_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with scene(tmp_path) as (agent, _):
        assert "input image: the cloud resizes pictures to 128 x 96 (stretch)" in caplog.text
        seen = known(agent)
        seen["grids"] = Seen("sha256:other", seen["grids"].resizes)
        asked_of(agent)._asked_at_s.clear()
        ask(agent, encoded("PNG"))  # its answer is another model's
        until(lambda: "grids" in seen)
        assert seen["grids"].digest != "sha256:other"


def test_a_server_that_answers_requests_alone_is_not_asked_with_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(model: str, *_: object) -> None:
        asked.append(model)
        raise RemoteError(RemoteErrorKind.UNIMPLEMENTED, "a gateway for ModelInfer alone")

    with scene(tmp_path) as (agent, _):
        assert agent.uplink is not None
        monkeypatch.setattr(agent.uplink, "metadata", refuse)
        known(agent).clear()
        asked_of(agent)._asked_at_s.clear()
        for _ in range(4):
            ask(agent, encoded("PNG"))
            until(lambda: not asked_of(agent)._asking)
        assert asked == ["grids"]


def test_the_flight_recorder_tells_what_goes_up(tmp_path: Path) -> None:
    with scene(tmp_path) as (agent, _):
        recorder = agent.flight_recorder = FlightRecorder(tmp_path / "flights")
        answer = ask(agent, encoded("JPEG"))
        told = json.dumps([*map(str, tell(recorder.find(answer.id)))])
        assert "pictures shrunk to the size that the cloud's model uses: about " in told


def test_on_a_slow_link_pictures_go_up_in_the_quality_that_it_carries(tmp_path: Path) -> None:
    """By what `calibrate` measured of the demo's pages, and the router's own belief about the link."""
    measured = [
        {"quality": quality, "bytes_share": share, "agreement": agreement}
        for quality, share, agreement in ((20, 0.5, 0.99), (1, 0.1, 0.97))
    ]
    calibration = {"model": "pages", "measure": "margin", "below": 1.0, "cloud_share": "90%"}
    rules = {
        "defaults": {"deadline": "2s", "hard": {"measure": "margin", "cloud_share": "90%"}},
        "calibrations": [{**calibration, "evidence": {"qualities": measured}}],
        "rules": UP["rules"],
    }
    sides = {"edge": {"bundle": str(ASSETS / "edge" / "pages")}, "cloud": {"model": "pages-large"}}
    picture = pages(1, seed=5)[0].png
    with (
        serving("--models", ASSETS / "cloud") as service,
        embedded_agent(write_agent(tmp_path, rules, service.address, {"pages": sides})) as agent,
    ):
        recorder = agent.flight_recorder = FlightRecorder(tmp_path / "flights")
        sent: list[int] = []
        agent.metrics.sent = lambda _, size_bytes: sent.append(size_bytes)  # type: ignore[method-assign, assignment]
        until(lambda: "pages" in known(agent))
        assert agent.infer("pages", {"image": picture}).route == "cloud"
        for index in range(32):
            size_bytes = 200 + 200 * (index % 4)
            agent.router.observe(CloudAnswered("pages", 1, size_bytes, 0.1 + size_bytes / 400, 0.01))
        answer = agent.infer("pages", {"image": picture})
        best, slow = sent[0], sent[-1]
        assert slow < 0.8 * best, "the bytes of quality 1"
        told = json.dumps([*map(str, tell(recorder.find(answer.id)))])
        assert "pictures at quality 1, which the link carries in time" in told
