"""The webhook over real sockets."""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.faults.certificates import Authority
from tests.integration.pipelines.sinks.receivers import Receiver, Reply, receiver
from tests.unit.pipelines.sinks.outboxes import message
from upwell.pipelines.sinks.base import Poisonous, SinkUnavailable
from upwell.pipelines.sinks.sink_settings import WebhookSettings
from upwell.pipelines.sinks.webhook import Webhook
from upwell.shared.errors import ConfigError

SECRET = "whsec-0123456789"  # noqa: S105 (of this test alone)


@contextmanager
def webhook(settings: WebhookSettings) -> Iterator[Webhook]:
    with closing(Webhook(settings)) as sink:
        yield sink


def at(there: Receiver, path: str = "/hook?site=dock") -> WebhookSettings:
    return WebhookSettings(f"http://127.0.0.1:{there.port}{path}", timeout_s=5.0)


def test_each_event_is_posted_with_its_key_over_one_connection(tmp_path: Path) -> None:
    with receiver() as there, webhook(at(there)) as sink:
        sink.deliver([message(0), message(1)])
        sink.deliver([replace(message(2), key="a b/ü\r\nX: y")])
    assert [one.body for one in there.taken] == [message(number).body for number in range(3)]
    assert {one.path for one in there.taken} == {"/hook?site=dock"}
    assert {one.headers["content-type"] for one in there.taken} == {"application/json"}
    assert [one.headers["idempotency-key"] for one in there.taken] == ["dock-0", "dock-1", "a%20b/%C3%BC%0D%0AX%3A%20y"]
    assert "upwell-signature" not in there.taken[0].headers
    assert there.connections == 1


def test_the_signature_is_over_time_and_body_and_the_secret_may_change(tmp_path: Path) -> None:
    secret_file = tmp_path / "secret"
    secret_file.write_text(SECRET + "\n")
    with receiver() as there, webhook(replace(at(there), secret_file=secret_file)) as sink:
        sink.deliver([message(0)])
        secret_file.write_text("another-secret-of-another-length")
        sink.deliver([message(1)])
    for posted, secret in zip(there.taken, (SECRET, "another-secret-of-another-length"), strict=True):
        stamp, _, digest = posted.headers["upwell-signature"].partition(",")
        unix_s = stamp.removeprefix("t=")
        assert abs(int(unix_s) - time.time()) < 60
        signed = unix_s.encode() + b"." + posted.body
        assert digest == "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422])
def test_an_answer_about_the_event_is_poisonous_and_those_before_it_are_taken(status: int) -> None:
    with receiver() as there, webhook(at(there)) as sink:
        there.reply = lambda posted: Reply(status if posted.sequence == 1 else 200)
        with pytest.raises(Poisonous) as caught:
            sink.deliver([message(number) for number in range(3)])
    assert caught.value.index == 1
    assert [one.sequence for one in there.posted] == [0, 1]


@pytest.mark.parametrize("status", [302, 307, 401, 403, 404, 405, 408, 410, 425, 429, 500, 502, 503])
def test_any_other_answer_is_tried_again_and_no_redirect_is_followed(status: int) -> None:
    with receiver() as there, webhook(at(there)) as sink:
        elsewhere = f"http://127.0.0.1:{there.port}/elsewhere"
        there.reply = lambda posted: Reply(status if posted.sequence == 1 else 200, (("Location", elsewhere),))
        with pytest.raises(SinkUnavailable, match=f"answered {status}") as caught:
            sink.deliver([message(number) for number in range(3)])
    assert (caught.value.taken, caught.value.retry_after_s) == (1, 0.0)
    assert [one.path for one in there.posted] == ["/hook?site=dock"] * 2


@pytest.mark.parametrize(
    ("value", "from_s", "to_s"),
    [("120", 120, 120), ("", 0, 0), ("in ten minutes", 400, 600)],
)
def test_retry_after_is_heeded_in_seconds_and_as_a_date(value: str, from_s: float, to_s: float) -> None:
    with receiver() as there, webhook(at(there)) as sink:
        said = formatdate(time.time() + 600, usegmt=True) if value == "in ten minutes" else value
        there.reply = lambda _: Reply(503, (("Retry-After", said),))
        with pytest.raises(SinkUnavailable) as caught:
            sink.deliver([message(0)])
    assert from_s <= caught.value.retry_after_s <= to_s


def test_a_receiver_that_answers_too_much_is_understood_and_left(tmp_path: Path) -> None:
    with receiver() as there, webhook(at(there)) as sink:
        there.reply = lambda _: Reply(200, body=b"x" * (1 << 20))
        sink.deliver([message(0), message(1)])
    assert len(there.taken) == 2
    assert there.connections == 2


def test_a_connection_that_was_given_up_meanwhile_costs_no_delivery() -> None:
    with receiver() as there, webhook(at(there)) as sink:
        there.reply = lambda _: Reply(200, (("Connection", "close"),))
        for number in range(3):
            sink.deliver([message(number)])
    assert [one.sequence for one in there.taken] == [0, 1, 2]


@contextmanager
def dripping() -> Iterator[int]:
    """A server that sends a byte of its answer every 20 ms, for ever; its port."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connected, _ = listening.accept()
            with connected:
                try:
                    while not ended.wait(0.02):
                        connected.sendall(b"H")
                except OSError:
                    pass

        thread = threading.Thread(target=drip)
        thread.start()
        yield listening.getsockname()[1]
        ended.set()
        thread.join()


def test_an_answer_that_drips_is_given_up_in_time() -> None:
    with (
        dripping() as port,
        webhook(WebhookSettings(f"http://127.0.0.1:{port}/", timeout_s=0.2)) as sink,
        pytest.raises(SinkUnavailable, match=r"timed out"),
    ):
        sink.deliver([message(0)])


@pytest.mark.parametrize(("reply", "told"), [(b"", "closed connection without response"), (b"\0\xff", "not HTTP")])
def test_a_receiver_that_closes_without_an_answer_is_told_from_one_that_is_no_web_server(
    reply: bytes, told: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.recv(1 << 16)
                connected.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        with webhook(WebhookSettings(url)) as sink, pytest.raises(SinkUnavailable, match=told):
            sink.deliver([message(0)])
        thread.join()


def test_over_tls_the_certificate_is_checked(authority: Authority, tmp_path: Path) -> None:
    with receiver(authority.sign("hook")) as there:
        url = f"https://localhost:{there.port}/hook"
        with webhook(WebhookSettings(url, ca=authority.ca)) as sink:
            sink.deliver([message(0)])
        with webhook(WebhookSettings(url)) as sink, pytest.raises(SinkUnavailable, match="certificate is not valid"):
            sink.deliver([message(1)])
    assert [one.sequence for one in there.taken] == [0]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/",
        "https:///path",
        "https://user:hunter2@host/",
        "https://host/a b",
        "https://host:99999/",
        "hunter2",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match="expected https://HOST") as caught:
        Webhook(WebhookSettings(url))
    assert "hunter2" not in str(caught.value)


def test_neither_secret_nor_path_is_in_its_name_an_error_or_a_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret_file = tmp_path / "secret"
    secret_file.write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with (
        caplog.at_level(logging.DEBUG),
        webhook(WebhookSettings(f"http://127.0.0.1:{port}/T0/hunter2", secret_file)) as sink,
    ):
        with pytest.raises(SinkUnavailable, match="refused") as refused:
            sink.deliver([message(0)])
        secret_file.write_text(f"{SECRET} of two words")
        with pytest.raises(SinkUnavailable) as unreadable:
            sink.deliver([message(0)])
    for text in (sink.name, str(refused.value), str(unreadable.value), caplog.text):
        assert SECRET not in text
        assert "hunter2" not in text
