"""A connection of the HTTP client, over a pair of sockets."""

from __future__ import annotations

import socket
import time

from upwell.shared.oip.http.client.connection import HttpConnection


def test_an_answer_that_is_dropped_after_its_connection_raises_nothing() -> None:
    """From Python 3.13 on it would be reported on standard error, once for each call that was given up."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        wire = HttpConnection(ours, time.monotonic() + 10.0)
        answer = wire.response("GET")
        wire.close()
        answer.close()
