"""What is shown of an address, what is live, the pauses, and what a decoder is told."""

from __future__ import annotations

import random
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.pipelines.sources import source_opening as opening
from upwell.pipelines.sources.base import SourceState, SourceStatus
from upwell.pipelines.sources.source_opening import open_source
from upwell.pipelines.sources.source_settings import (
    CameraSettings,
    CustomSettings,
    FolderSettings,
    Patience,
    SourceSettings,
    VideoSettings,
    is_live,
    shown_address,
)
from upwell.pipelines.sources.video import Pauses, is_exclusive, job_of
from upwell.shared.errors import ConfigError

MARK = "Zq7"
secrets = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8).map(lambda text: MARK + text)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("rtsp://cam-7.local/main", "rtsp://cam-7.local/main"),
        ("rtsp://user:pass@cam:554/main", "rtsp://cam:554/main"),
        ("rtsp://user:p@ss@cam/main", "rtsp://cam/main"),
        ("rtsp://user:p/as#s@cam/main", "rtsp://cam/main"),
        ("rtsp://user:p?s@cam/main", "rtsp://…"),
        ("rtsp://cam/main?key=p@ss&other=word", "rtsp://…"),
        ("https://cam/live?channel=1&token=abc#x", "https://cam/live?channel=…&token=…"),
        ("https://cam/live?abc", "https://cam/live?…"),
        ("https://cam/live?YWJj=&abc==", "https://cam/live?…&…"),
        ("/srv/videos/a@b.mp4", "/srv/videos/a@b.mp4"),
        ("/dev/video0", "/dev/video0"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(address: str, shown: str) -> None:
    assert shown_address(address) == shown


@given(st.sampled_from(["rtsp", "rtsps", "http", "HTTPS", "srt"]), secrets, secrets)
def test_no_password_and_no_value_of_a_query_is_ever_shown(scheme: str, user: str, value: str) -> None:
    alone = value.replace("=", "") + "=="  # a word of a query without a value may be a secret, as base64 ends
    assert MARK not in shown_address(f"{scheme}://{user}:{value}@cam/main?key={value}&{alone}")
    assert MARK not in shown_address(f"{scheme}://cam/main?key={value}&other={user}")


def test_streams_are_live_and_files_are_not() -> None:
    assert [is_live(one) for one in ("rtsp://a/b", "http://a", "SRT://a")] == [True, True, True]
    assert [is_live(one) for one in ("a.mp4", "/a/b.mp4", "file:///a.mp4", "C:\\a.mp4")] == [False] * 4


def test_a_live_stream_keeps_the_latest_and_a_file_all() -> None:
    assert not job_of(VideoSettings("rtsp://a/b")).keeps_all
    assert job_of(VideoSettings("rtsp://a/b", keep="all")).keeps_all
    assert job_of(VideoSettings("a.mp4")).keeps_all
    assert not job_of(VideoSettings("a.mp4", keep="latest")).keeps_all


def test_a_stream_may_not_lead_to_a_local_file() -> None:
    options = job_of(VideoSettings("http://a/b.m3u8")).options or {}
    assert "file" not in options["protocol_whitelist"].split(",")
    options = job_of(VideoSettings("b.m3u8")).options or {}
    assert "http" not in options["protocol_whitelist"].split(",")


def test_a_camera_is_asked_for_its_rate() -> None:
    job = job_of(CameraSettings("/dev/video2", fps=10))
    assert (job.address, job.format, job.is_live, job.keeps_all) == ("/dev/video2", "v4l2", True, False)
    assert job.options == {"framerate": "10"}
    assert job_of(CameraSettings()).options == {}


@pytest.mark.parametrize(
    "address",
    ["udp://0.0.0.0:5000", "srt://0.0.0.0:9000?latency=200&mode=listener", "srt://a:9?mode=rendezvous&pkt_size=1"],
)
def test_beside_what_listens_on_a_port_and_beside_a_camera_no_other_connection_is_tried(address: str) -> None:
    assert is_exclusive(job_of(VideoSettings(address)))
    assert is_exclusive(job_of(CameraSettings(decoder="gst-launch-1.0 nvarguscamerasrc ! nvvidconv")))
    for other in ("srt://a:9000", "srt://a:9000?mode=caller", "rtsp://a/b?mode=listener"):
        assert not is_exclusive(job_of(VideoSettings(other)))


@given(st.integers(0, 2**32))
def test_pauses_grow_to_the_longest_and_begin_anew_after_a_calm_time(seed: int) -> None:
    patience = Patience(first_pause_s=0.5, longest_pause_s=4.0)
    pauses = Pauses(patience, random.Random(seed))
    bounds = [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert all(bound / 2 <= pauses.next_s(0.0) <= bound for bound in bounds)
    assert 2.0 <= pauses.next_s(1.0) <= 4.0
    assert 0.25 <= pauses.next_s(5.0) <= 0.5
    assert 0.5 <= pauses.next_s(0.0) <= 1.0


def test_every_captured_frame_has_one_fate() -> None:
    status = SourceStatus(SourceState.LIVE, given=5, superseded=3, undecodable=2, source_lost=1)
    assert status.captured == 11


def test_a_kind_that_nobody_has_installed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is no source 'lidar'; the group upwell.sources has: none"):
        open_source(CustomSettings("lidar"))


def test_a_source_of_others_is_opened_with_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = EntryPoint("lidar", f"{__name__}:opened_with", opening.GROUP)
    monkeypatch.setattr(opening, "entry_points", lambda group: [entry] * (group == "upwell.sources"))
    monkeypatch.setattr(EntryPoint, "load", lambda _: opened_with)
    assert open_source(CustomSettings("lidar", {"path": tmp_path})).status.decoder == "folder"


@pytest.mark.parametrize(
    ("settings", "package"), [(VideoSettings("a.mp4"), "av"), (FolderSettings(Path("a")), "watchfiles")]
)
def test_a_source_whose_package_is_missing_says_what_to_install(
    settings: SourceSettings, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(ConfigError, match=rf"needs the package {package}, .* pip install 'upwell\[pipelines\]'"):
        open_source(settings)


def opened_with(options: dict[str, Path]) -> object:
    """A source that somebody else has written."""
    return open_source(FolderSettings(options["path"]))
