"""Where a request begins and ends, whatever the pieces in which it comes."""

from __future__ import annotations

import pytest

from upwell.shared.oip.http.server.request_scanner import MAX_HEADERS, RequestScanner

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
SIZED = HEAD + b"Content-Length: 5\r\n\r\nabcde"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
NEXT = b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("request_bytes", [SIZED, CHUNKED])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_request_ends_where_it_ends_in_whatever_pieces_it_comes(request_bytes: bytes, size: int) -> None:
    scanner = RequestScanner(100)
    data, body = request_bytes + NEXT, b""
    for start in range(0, len(data), size):
        body += b"".join(scanner.scan(data[start : start + size]))
    assert (body, scanner.is_whole, scanner.refusal) == (b"abcde", True, None)
    assert scanner.kept_bytes == len(NEXT)
    scanner.next_request()
    assert scanner.scan(b"") == []
    assert scanner.head is not None
    assert (scanner.head.method, scanner.head.body_bytes, scanner.is_whole) == ("GET", 0, True)


@pytest.mark.parametrize("request_bytes", [SIZED, CHUNKED])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_same_headers_again_mean_the_same_and_others_what_they_say(request_bytes: bytes, size: int) -> None:
    scanner, found = RequestScanner(100), []
    for one in (request_bytes, request_bytes, HEAD + b"Content-Length: 50\r\n\r\n" + bytes(50), request_bytes):
        body = b"".join(b"".join(scanner.scan(one[at : at + size])) for at in range(0, len(one), size))
        assert scanner.head is not None
        found.append((scanner.head.method, scanner.head.body_bytes, len(body), scanner.is_whole))
        scanner.next_request()
    again = ("POST", 5 if request_bytes is SIZED else None, 5, True)
    assert found == [again, again, ("POST", 50, 50, True), again]
    assert scanner.scan(request_bytes.replace(b"Host: a", b"Host: a\r\nHost: a")) == []
    assert scanner.refusal is not None


@pytest.mark.parametrize(
    "end", [b"0\n\r\n", b" 0\r\n\r\n", b"0 \r\n\r\n", b"0;a=b\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"+0\r\n\r\n"]
)
@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_wrong_in_chunks_is_found_in_whatever_pieces_it_comes(end: bytes, size: int) -> None:
    scanner = RequestScanner(100)
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + end
    assert [scanner.scan(data[start : start + size]) for start in range(0, len(data), size)][-1] == []
    assert scanner.refusal is not None
    assert not scanner.is_whole


@pytest.mark.parametrize(
    "lines",
    [
        b"",
        b"Host: a\r\nHost: a\r\n",
        b"Host: a\r\nAuthorization: a\r\nauthorization: a\r\n",
        b"Host: a\r\nUpwell-Tag-A: x\r\nupwell-tag-a: x\r\n",
    ],
)
def test_headers_that_say_two_things_or_nothing_are_refused(lines: bytes) -> None:
    scanner = RequestScanner(100)
    assert scanner.scan(b"GET /v2 HTTP/1.1\r\n" + lines + b"\r\n") == []
    assert scanner.refusal is not None


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /v2 HTTP/1.1\n", 400),
        (b"GET /v2 HTTP/1.2\r\nHost: a\r\n\r\n", 505),
        (b"GET //v2 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"POST /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (HEAD + b"X: y\r\n" * MAX_HEADERS + b"\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n64\r\n" + bytes(100) + b"\r\n1\r\n", 413),
    ],
)
def test_what_another_server_might_read_differently_or_is_too_much_is_refused(
    request_bytes: bytes, status: int
) -> None:
    scanner = RequestScanner(100)
    scanner.scan(request_bytes)
    assert scanner.refusal is not None
    assert scanner.refusal.status == status


def test_as_many_headers_as_allowed_are_read() -> None:
    scanner = RequestScanner(100)
    scanner.scan(HEAD + b"X: y\r\n" * (MAX_HEADERS - 1) + b"\r\n")
    assert scanner.head is not None


def test_chunks_of_one_byte_are_few() -> None:
    scanner = RequestScanner(1 << 20)
    scanner.scan(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 1003)
    assert scanner.refusal is None
    scanner.scan(b"1\r\na\r\n")
    assert scanner.refusal is not None


@pytest.mark.parametrize(
    ("version", "connection", "is_kept"),
    [(b"1.1", b"", True), (b"1.1", b"close", False), (b"1.0", b"", False), (b"1.0", b"Keep-Alive", True)],
)
def test_who_may_send_another_request(version: bytes, connection: bytes, is_kept: bool) -> None:
    scanner = RequestScanner(100)
    scanner.scan(b"GET /v2 HTTP/%s\r\nHost: a\r\nConnection: %s\r\n\r\n" % (version, connection))
    assert scanner.head is not None
    assert scanner.head.is_kept is is_kept
