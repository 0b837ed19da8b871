"""A stop: what is under way is answered, what lasts too long is cancelled, nothing is lost without a word."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from tests.integration.oip_http.harness import (
    BODY,
    INFER,
    TIMEOUT_S,
    PictureModel,
    Serve,
    ask,
    dial,
    read_all,
    status_of,
)
from upwell.shared.oip.grpc.server.server import Connections


def test_requests_under_way_are_answered_before_it_ends(serve: Serve, fake: PictureModel) -> None:
    server = serve()
    fake.hold()
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(ask, server, "POST", INFER, BODY) for _ in range(4)]
        assert fake.arrived(4, TIMEOUT_S)
        stopping = pool.submit(server.stop, TIMEOUT_S)
        with suppress(ConnectionError):  # until then, new connections are still taken
            while ask(server, "GET", "/v2/health/live"):
                pass
        assert not stopping.done()
        fake.release()
        answers = [one.result() for one in waiting]
        stopping.result()
    assert [(answer.status, answer.headers["Connection"]) for answer in answers] == [(200, "close")] * 4


def test_what_lasts_longer_than_the_grace_is_cancelled_and_told_so(serve: Serve, fake: PictureModel) -> None:
    server = serve()
    fake.hold()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "POST", INFER, BODY)
        assert fake.arrived(1, TIMEOUT_S)
        server.stop(0.05)
        assert waiting.result().status == 499


def test_a_request_that_is_whole_only_after_the_grace_is_not_begun(serve: Serve, fake: PictureModel) -> None:
    server = serve()
    fake.hold()
    head = f"POST {INFER} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    with ThreadPoolExecutor(2) as pool, dial(server) as late:
        late.sendall(head + BODY[:5])
        waiting = pool.submit(ask, server, "POST", INFER, BODY)
        assert fake.arrived(1, TIMEOUT_S)
        stopping = pool.submit(server.stop, 0.05)
        assert fake.calls[0].cancelled.wait(TIMEOUT_S)
        late.sendall(BODY[5:])
        assert status_of(read_all(late)) == 503
        assert waiting.result().status == 499
        stopping.result()
    assert len(fake.requests) == 1


def test_no_thread_is_left(serve: Serve) -> None:
    before = set(threading.enumerate())
    server = serve()
    assert ask(server, "POST", INFER, BODY).status == 200
    server.stop(1)
    assert [one for one in threading.enumerate() if one not in before and one.name.startswith("http-")] == []


def test_what_was_sent_before_the_stop_is_answered(serve: Serve) -> None:
    """Whether a connection has been accepted by then or not."""
    server = serve()
    with ExitStack() as stack:
        sent = [stack.enter_context(dial(server)) for _ in range(30)]
        for connection in sent:
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        server.stop(TIMEOUT_S)
        assert [read_all(connection).endswith(b'{"live":true}') for connection in sent] == [True] * 30


@pytest.mark.parametrize(("age_s", "connection"), [(0.0, "close"), (3600.0, None), (None, None)])
def test_an_old_connection_ends_with_an_answer_that_says_so(
    serve: Serve, age_s: float | None, connection: str | None
) -> None:
    answer = ask(serve(connections=Connections(age_s=age_s)), "POST", INFER, BODY)
    assert (answer.status, answer.headers.get("Connection")) == (200, connection)
