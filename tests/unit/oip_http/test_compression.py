"""Compressed bodies: read within the limits of memory and size, refused where damaged, written where asked for."""

import gzip
import zlib
from collections.abc import Callable
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.shared.errors import InvalidRequest, Refused
from upwell.shared.oip.http.replies import Rejected, Reply
from upwell.shared.oip.http.server.request_bodies import Memory, Share, accepted, encoding_of, packed, unpacked

MAX_BYTES = 3 << 20
PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


def share(free_bytes: int = 64 << 20) -> Share:
    return Share(Memory(free_bytes), "a", lambda: None)


@given(st.binary(max_size=5000), st.sampled_from(sorted(PACK)))
def test_what_was_packed_is_unpacked(data: bytes, encoding: str) -> None:
    assert bytes(unpacked(encoding, memoryview(PACK[encoding](data)), MAX_BYTES, share())) == data


@given(st.binary(min_size=1, max_size=300), st.sampled_from(sorted(PACK)), st.data())
def test_what_is_cut_or_has_more_behind_it_is_refused(data: bytes, encoding: str, draw: st.DataObject) -> None:
    body = PACK[encoding](data)
    cut = draw.draw(st.integers(0, len(body) - 1))
    for damaged in (body[:cut], body + b"x"):
        with pytest.raises(InvalidRequest, match=encoding):
            unpacked(encoding, memoryview(damaged), MAX_BYTES, share())


@pytest.mark.parametrize("encoding", sorted(PACK))
def test_a_bomb_is_refused_before_it_takes_memory(encoding: str) -> None:
    bomb = memoryview(PACK[encoding](bytes(64 << 20)))
    with pytest.raises(Rejected, match="unpacked") as caught:
        unpacked(encoding, bomb, MAX_BYTES, share())
    status = ("Upwell-Status", "RESOURCE_EXHAUSTED")  # as for a body that is not compressed
    assert (caught.value.status, caught.value.headers) == (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, (status,))
    with pytest.raises(Refused):
        unpacked(encoding, bomb, 1 << 30, share(8 << 20))


def test_other_encodings_are_refused_by_name() -> None:
    assert [encoding_of(headers) for headers in ({}, {"content-encoding": " GZIP "})] == ["", "gzip"]
    with pytest.raises(Rejected, match="gzip and deflate"):
        encoding_of({"content-encoding": "br"})


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("", ""),
        ("br", ""),
        ("gzip, deflate", "gzip"),
        ("br;q=1, Deflate;q=0.5", "deflate"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip;q=0.0", ""),
    ],
)
def test_an_answer_has_the_first_encoding_that_the_client_takes(header: str, encoding: str) -> None:
    assert accepted({"accept-encoding": header}) == encoding


def test_a_long_answer_is_packed_and_a_short_one_is_not() -> None:
    short, long = Reply(200, (), (b"x" * 100,)), Reply(200, (("A", "b"),), (b"x" * 600, b"y" * 600))
    assert packed(short, "gzip") is short
    assert packed(long, "") is long
    for encoding, unpack in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
        reply = packed(long, encoding)
        assert unpack(b"".join(reply.body)) == b"x" * 600 + b"y" * 600
        assert dict(reply.headers) == {"A": "b", "Content-Encoding": encoding, "Vary": "Accept-Encoding"}
        assert reply.size_bytes < long.size_bytes
