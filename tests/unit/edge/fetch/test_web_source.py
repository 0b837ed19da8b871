"""Archives on a web server: what is asked, what is taken up, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.bundle_servers import FileServer
from tests.faults.certificates import Authority
from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.updates.sources import partial_archive, web_source
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Source
from upwell.edge.updates.sources.source_opening import open_source

NAME = "digits.bundle.tar"
DATA = bytes(range(256)) * 1000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Iterator[FileServer]:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / NAME).write_bytes(DATA)
    with FileServer(tmp_path / "www", authority.sign("server")) as server:
        yield server


@pytest.fixture
def source(server: FileServer, authority: Authority) -> Iterator[Source]:
    source = open_source(server.url(NAME), ca=authority.ca)
    yield source
    source.close()


def nobody(_there: int, _whole: int) -> None:
    pass


def offer_of(source: Source) -> AvailableBundle:
    offer = source.newest()
    assert offer is not None
    return offer


def broken_after(server: FileServer, source: Source, into: Path, count: int) -> None:
    """Fetch `count` bytes, then have the connection break."""
    server.stall_after = count
    server.release.set()
    with pytest.raises(FetchFailed, match="broke"):
        source.fetch(offer_of(source), into, nobody)
    server.stall_after = None


def test_an_archive_is_named_without_being_fetched(server: FileServer, source: Source) -> None:
    offer = offer_of(source)
    assert offer.size_bytes == len(DATA)
    assert [one.method for one in server.asked] == ["HEAD"]
    assert offer_of(source) == offer
    (server.folder / NAME).write_bytes(DATA[1:])
    assert offer_of(source).token != offer.token


def test_an_archive_is_fetched_whole(source: Source, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = source.fetch(offer_of(source), tmp_path / "in", lambda *sizes: seen.append(sizes))
    assert path.read_bytes() == DATA
    assert path.parent == tmp_path / "in"
    assert seen[0] == (0, len(DATA))
    assert seen[-1] == (len(DATA), len(DATA))


def test_nothing_there_is_no_failure(server: FileServer, source: Source) -> None:
    (server.folder / NAME).unlink()
    assert source.newest() is None


def test_what_broke_off_is_taken_up_by_another_process(
    server: FileServer, authority: Authority, source: Source, tmp_path: Path
) -> None:
    broken_after(server, source, tmp_path / "in", 100_000)
    again = open_source(server.url(NAME), ca=authority.ca)
    assert again.fetch(offer_of(again), tmp_path / "in", nobody).read_bytes() == DATA
    again.close()
    assert [one.start for one in server.asked if one.method == "GET"] == [0, 100_000]
    assert server.asked[-1].headers["If-Range"] == server.etag(DATA)


def test_a_complete_archive_is_not_fetched_again(server: FileServer, source: Source, tmp_path: Path) -> None:
    for _ in range(2):
        source.fetch(offer_of(source), tmp_path / "in", nobody)
    assert [one.method for one in server.asked] == ["HEAD", "GET", "HEAD"]


def test_a_file_that_changed_meanwhile_is_begun_anew(server: FileServer, source: Source, tmp_path: Path) -> None:
    broken_after(server, source, tmp_path / "in", 100_000)
    (server.folder / NAME).write_bytes(DATA[::-1])
    assert source.fetch(offer_of(source), tmp_path / "in", nobody).read_bytes() == DATA[::-1]
    assert server.asked[-1].status == 200


def test_a_file_that_changes_between_look_and_fetch_is_not_taken_for_the_other(
    server: FileServer, source: Source, tmp_path: Path
) -> None:
    broken_after(server, source, tmp_path / "in", 100_000)
    offer = offer_of(source)
    (server.folder / NAME).write_bytes(DATA[::-1])
    with pytest.raises(FetchFailed, match="changed"):
        source.fetch(offer, tmp_path / "in", nobody)
    assert not list((tmp_path / "in").iterdir())


def test_a_server_without_ranges_sends_it_again_whole(server: FileServer, source: Source, tmp_path: Path) -> None:
    server.ranges = False
    broken_after(server, source, tmp_path / "in", 100_000)
    assert source.fetch(offer_of(source), tmp_path / "in", nobody).read_bytes() == DATA
    assert server.asked[-1].status == 200


def test_a_weak_etag_puts_nothing_together(server: FileServer, source: Source, tmp_path: Path) -> None:
    server.etag = lambda data: f'W/"{len(data)}"'
    broken_after(server, source, tmp_path / "in", 100_000)
    assert source.fetch(offer_of(source), tmp_path / "in", nobody).read_bytes() == DATA
    assert "Range" not in server.asked[-1].headers


def test_last_modified_will_do(server: FileServer, source: Source, tmp_path: Path) -> None:
    server.etag = lambda _: ""
    server.modified = "Sat, 01 Aug 2026 10:00:00 GMT"
    broken_after(server, source, tmp_path / "in", 100_000)
    assert source.fetch(offer_of(source), tmp_path / "in", nobody).read_bytes() == DATA
    assert server.asked[-1].start == 100_000
    server.modified = ""
    with pytest.raises(FetchFailed, match="neither ETag nor Last-Modified"):
        source.newest()


def test_a_server_that_knows_no_head_is_asked_with_get(server: FileServer, source: Source) -> None:
    server.head = False
    assert offer_of(source).size_bytes == len(DATA)


def test_an_archive_without_a_stated_size_is_bounded(server: FileServer, authority: Authority, tmp_path: Path) -> None:
    server.answers[NAME] = lambda: (200, {"ETag": '"1"', "Content-Length": str(1 << 40)}, b"x")
    source = open_source(server.url(NAME), ca=authority.ca)
    with pytest.raises(BundleRefused) as caught:
        source.fetch(offer_of(source), tmp_path / "in", nobody)
    assert caught.value.refusal is Refusal.TOO_LARGE
    with pytest.raises(BundleRefused) as caught:
        source.fetch(AvailableBundle('etag "1"'), tmp_path / "in", nobody)
    assert caught.value.refusal is Refusal.TOO_LARGE
    source.close()


def test_too_many_bytes_are_cut_off_while_they_come(
    server: FileServer, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_archive, "MAX_BYTES", 50_000)
    chunked = b"".join(b"%x\r\n%s\r\n" % (1000, DATA[:1000]) for _ in range(100)) + b"0\r\n\r\n"
    server.answers[NAME] = lambda: (
        200, {"ETag": '"1"', "Content-Length": "", "Transfer-Encoding": "chunked"}, chunked,
    )  # fmt: skip
    source = open_source(server.url(NAME), ca=authority.ca)
    with pytest.raises(BundleRefused) as caught:
        source.fetch(AvailableBundle('etag "1"'), tmp_path / "in", nobody)
    assert caught.value.refusal is Refusal.TOO_LARGE
    assert not list((tmp_path / "in").iterdir())
    source.close()


def test_a_digest_that_is_pinned_must_be_met(server: FileServer, authority: Authority, tmp_path: Path) -> None:
    source = open_source(server.url(NAME), ca=authority.ca, digest="sha256:" + "0" * 64)
    with pytest.raises(BundleRefused) as caught:
        source.fetch(offer_of(source), tmp_path / "in", nobody)
    assert caught.value.refusal is Refusal.DIGEST_MISMATCH
    assert not list((tmp_path / "in").iterdir())
    source.close()


def test_parts_that_do_not_fit_together_are_begun_anew(
    server: FileServer, authority: Authority, tmp_path: Path
) -> None:
    server.etag = lambda _: '"the same"'
    source = open_source(server.url(NAME), ca=authority.ca, digest="sha256:" + "0" * 64)
    broken_after(server, source, tmp_path / "in", 100_000)
    with pytest.raises(FetchFailed, match="fit together") as caught:
        source.fetch(offer_of(source), tmp_path / "in", nobody)
    assert caught.value.retry_after_s > 0
    assert not list((tmp_path / "in").iterdir())
    source.close()


def test_an_unknown_issuer_is_named(server: FileServer) -> None:
    source = open_source(server.url(NAME))
    with pytest.raises(FetchFailed, match="certificate is not trusted: unable to get"):
        source.newest()
    source.close()


def test_a_redirect_is_followed_to_https_alone(server: FileServer, source: Source, tmp_path: Path) -> None:
    server.answers[NAME] = lambda: (302, {"Location": "/moved?signature=secret"}, b"")
    server.answers["moved?signature=secret"] = lambda: (200, {"ETag": '"1"'}, DATA)
    assert source.fetch(offer_of(source), tmp_path / "in", nobody).read_bytes() == DATA
    server.answers[NAME] = lambda: (302, {"Location": f"http://127.0.0.1:{server.port}/moved?signature=secret"}, b"")
    with pytest.raises(FetchFailed, match="expected https") as caught:
        source.newest()
    assert "secret" not in str(caught.value)
    server.answers[NAME] = lambda: (302, {"Location": f"/{NAME}"}, b"")
    with pytest.raises(FetchFailed, match="redirects more than"):
        source.newest()


@pytest.mark.parametrize(
    ("said", "least", "most"),
    [
        ("120", 120, 120),
        ("Sat, 01 Aug 2099 10:00:00 GMT", 86400, 86400),
        ("soon", 0, 0),
    ],
)
def test_a_server_may_ask_to_be_left_alone(
    server: FileServer, source: Source, said: str, least: float, most: float
) -> None:
    server.answers[NAME] = lambda: (503, {"Retry-After": said}, b"")
    with pytest.raises(FetchFailed, match="503") as caught:
        source.newest()
    assert least <= caught.value.retry_after_s <= most


def test_a_stalled_link_does_not_hang_for_ever(
    server: FileServer, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_source, "READ_S", 0.2)
    server.stall_after = 70_000
    with pytest.raises(FetchFailed, match="in time"):
        source.fetch(offer_of(source), tmp_path / "in", nobody)
    server.release.set()
    server.stall_after = None
    assert source.fetch(offer_of(source), tmp_path / "in", nobody).read_bytes() == DATA
    assert server.asked[-1].start == 70_000


def test_closing_ends_a_fetch_that_waits(server: FileServer, source: Source, tmp_path: Path) -> None:
    server.stall_after = 70_000
    failures: list[str] = []

    def fetch() -> None:
        try:
            source.fetch(offer_of(source), tmp_path / "in", nobody)
        except FetchFailed as error:
            failures.append(str(error))

    thread = threading.Thread(target=fetch)
    thread.start()
    assert server.stalled.wait(10)
    source.close()
    thread.join(10)
    assert failures == ["fetching was stopped"]
    with pytest.raises(FetchFailed, match="stopped"):
        source.newest()


def test_what_proves_who_asks_stays_with_the_host_that_it_is_for(
    server: FileServer, authority: Authority, tmp_path: Path
) -> None:
    web = web_source.Web(authority.ca)
    with FileServer(server.folder, authority.sign("other")) as other:
        for host, is_shown in ((server, True), (other, False)):
            moved = (302, {"Location": host.url(NAME)}, b"")
            server.answers["moved"] = partial(lambda answer: answer, moved)
            with web.open("GET", server.url("moved"), {"Authorization": "Bearer s3cret"}) as response:
                assert response.status_code == 200
            assert ("Authorization" in host.shown) is is_shown
    web.close()
