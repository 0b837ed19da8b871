"""Servers that get HTTP wrong, or the protocol over it, and what a client is to make of each."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from tests.faults.raw_servers import Speech, says
from upwell.shared.oip.grpc.client.client import RemoteErrorKind

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWER = b'{"model_name":"digits-large","outputs":[]}'


def scripted(data: bytes, *, ends: bool = False) -> Speech:
    """Say this once a request has begun to come; then say no more, or close the connection."""

    def speak(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(data)
        if ends:
            connection.shutdown(socket.SHUT_WR)

    return speak


def _status(line: str) -> Speech:
    return scripted(f"HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n".encode())


_GARBLED: Mapping[str, Speech] = {
    "noise": says(bytes(range(256)) * 16),
    "another protocol": scripted(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "no version": scripted(b"HTTP/x.y 200 OK\r\n\r\n"),
    "a status that is none": scripted(b"HTTP/1.1 9999 OK\r\n\r\n"),
    "a page": scripted(OK + b"Content-Length: 6\r\n\r\n<html>"),
    "no body": scripted(OK + b"Content-Length: 0\r\n\r\n"),
    "no content": scripted(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "a redirect": _status("307 There\r\nLocation: http://127.0.0.1:1/"),
    "more than it says": scripted(OK + b"Content-Length: 3\r\n\r\n" + ANSWER),
    "compressed": scripted(OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b"),
    "JSON of no size": scripted(OK + b"Content-Length: 2\r\nInference-Header-Content-Length: 99\r\n\r\n{}"),
    "too many headers": scripted(OK + b"A: b\r\n" * 200 + b"\r\n"),
    "a line without end": scripted(OK + b"A: " + b"b" * 70_000),
}
_GONE: Mapping[str, Speech] = {
    "nothing": scripted(b"", ends=True),
    "half the headers": scripted(OK + b"Content-Length: 2\r\n", ends=True),
    "half a status": scripted(OK[:12], ends=True),
    "less than it says": scripted(OK + b"Content-Length: 99\r\n\r\n{}", ends=True),
    "an end amid chunks": scripted(CHUNKED + b"5\r\n{", ends=True),
    "a chunk of no size": scripted(CHUNKED + b"xyz\r\n{}"),
    "unavailable": _status("503 Later"),
    "a gateway without its server": _status("502 Bad"),
}
_LATE: Mapping[str, Speech] = {
    "continue, and nothing": scripted(b"HTTP/1.1 100 Continue\r\n\r\n" * 3),
    "a status that never ends": scripted(OK[:12]),
    "a gateway that is late": _status("504 Late"),
}
_OTHERS: Mapping[str, tuple[Speech, RemoteErrorKind]] = {
    "a body of 4 GB": (scripted(OK + b"Content-Length: 4294967296\r\n\r\n"), RemoteErrorKind.RESOURCE_EXHAUSTED),
    "chunks without end": (scripted(CHUNKED + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 40),
                           RemoteErrorKind.RESOURCE_EXHAUSTED),
    "too many requests": (_status("429 Wait"), RemoteErrorKind.RESOURCE_EXHAUSTED),
    "another path": (_status("404 No"), RemoteErrorKind.NOT_FOUND),
    "who asks": (_status("401 Who"), RemoteErrorKind.UNAUTHENTICATED),
    "a fault": (_status("500 Oops"), RemoteErrorKind.INTERNAL),
    "its own name for it": (_status("400 No\r\nUpwell-Status: FAILED_PRECONDITION"),
                            RemoteErrorKind.FAILED_PRECONDITION),
    "a name that is none": (_status("400 No\r\nUpwell-Status: SORRY"), RemoteErrorKind.INVALID_ARGUMENT),
}  # fmt: skip
BROKEN_HTTP: Mapping[str, tuple[Speech, RemoteErrorKind]] = {
    **{name: (speech, RemoteErrorKind.GARBAGE) for name, speech in _GARBLED.items()},
    **{name: (speech, RemoteErrorKind.UNAVAILABLE) for name, speech in _GONE.items()},
    **{name: (speech, RemoteErrorKind.DEADLINE) for name, speech in _LATE.items()},
    **_OTHERS,
}
"""By what is wrong: the server, and the kind of error."""
