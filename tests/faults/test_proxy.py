"""The proxy itself, against a server that echoes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.faults.proxy import Proxy


@contextmanager
def echo_server() -> Iterator[str]:
    """`HOST:PORT` of a server that sends back what it gets."""

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [threading.Thread(target=accept)]
        threads[0].start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with echo_server() as target, Proxy(target, record=True) as running:
        yield running


@contextmanager
def connected(proxy: Proxy, timeout_s: float = 5.0) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout_s) as connection:
        yield connection


def receive(connection: socket.socket, count: int) -> bytes:
    """`count` bytes, or fewer where the connection ends."""
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data


def exchange(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return receive(connection, len(data))


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    return False


def test_passes_and_counts_both_ways(proxy: Proxy) -> None:
    message = bytes(range(256)) * 1000
    with connected(proxy) as connection:
        assert exchange(connection, message) == message
    assert (proxy.up.received_bytes, proxy.down.received_bytes) == (len(message), len(message))
    assert proxy.up.record is not None
    assert proxy.down.record is not None
    assert bytes(proxy.up.record) == bytes(proxy.down.record) == message
    assert proxy.accepted == 1


def test_passes_the_end_of_one_direction_alone(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert receive(connection, 100) == b"last words"


@pytest.mark.alone
@pytest.mark.parametrize("way", ["up", "down"])
def test_delays_each_byte_without_slowing_the_stream(proxy: Proxy, way: str) -> None:
    getattr(proxy, way).delay(0.2)
    with connected(proxy) as connection:
        started_s = time.monotonic()
        for _ in range(10):
            connection.sendall(b"x" * 1000)
        assert len(receive(connection, 10_000)) == 10_000
        assert 0.2 <= time.monotonic() - started_s < 0.6


def test_keeps_the_order_when_a_delay_ends(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        proxy.down.delay(0.2)
        connection.sendall(b"first")
        wait_until(lambda: proxy.down.received_bytes == 5)
        proxy.down.pass_()
        connection.sendall(b"second")
        assert receive(connection, 11) == b"firstsecond"


@pytest.mark.alone
def test_throttles(proxy: Proxy) -> None:
    proxy.up.throttle(100_000)
    message = bytes(range(250)) * 120
    with connected(proxy) as connection:
        started_s = time.monotonic()
        assert exchange(connection, message) == message
        assert 0.27 <= time.monotonic() - started_s < 0.8


def test_cuts_now(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        exchange(connection, b"open")
        proxy.cut()
        assert connection.recv(1) == b""
        assert proxy.open_connections == 0


def test_cuts_mid_reply(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        exchange(connection, b"before")
        proxy.down.cut_after(7)
        assert exchange(connection, b"0123456789") == b"0123456"


def test_resets_now(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        exchange(connection, b"open")
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_resets_mid_reply(proxy: Proxy) -> None:
    proxy.down.reset_after(7)
    with connected(proxy) as connection, pytest.raises(ConnectionResetError):
        assert exchange(connection, b"0123456789") != b"0123456789"
    assert proxy.down.received_bytes == 10


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_blackhole_takes_and_gives_nothing_and_what_it_swallowed_stays_lost(proxy: Proxy, way: str) -> None:
    with connected(proxy) as old:
        exchange(old, b"open")
        getattr(proxy, way).blackhole()
        old.sendall(b"hello?")
        assert is_silent(old)
        with connected(proxy) as during:
            during.sendall(b"hello?")
            assert is_silent(during)
        proxy.restore()
        with connected(proxy) as new:
            assert exchange(new, b"back") == b"back"
        old.sendall(b"still there?")
        assert is_silent(old)


def test_flips_bits_from_a_byte_on(proxy: Proxy) -> None:
    proxy.down.garble(from_byte=3, mask=0x20)
    with connected(proxy) as connection:
        assert exchange(connection, b"abcdef") == b"abcDEF"
        assert exchange(connection, b"gh") == b"GH"
        proxy.down.pass_()
        assert exchange(connection, b"abcdef") == b"abcdef"


def test_refuses_and_comes_back_on_the_same_port(proxy: Proxy) -> None:
    with connected(proxy) as connection:
        exchange(connection, b"open")
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError), connected(proxy):
        pass
    proxy.restore()
    with connected(proxy) as connection:
        assert exchange(connection, b"back") == b"back"


def test_resets_its_caller_where_the_target_is_gone() -> None:
    with echo_server() as target:
        pass
    # The reset may come before the connection is handed out.
    with Proxy(target) as proxy, pytest.raises(ConnectionResetError), connected(proxy) as connection:
        connection.recv(1)


def test_ends_its_thread_with_everything_still_open() -> None:
    before = set(threading.enumerate())
    with echo_server() as target:
        proxy = Proxy(target)
        proxy.down.delay(60.0)
        with connected(proxy) as connection:
            connection.sendall(b"held")
            wait_until(lambda: proxy.down.received_bytes == 4)
            proxy.close()
            proxy.close()
    assert set(threading.enumerate()) <= before


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Poll a condition that another thread brings about."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "the condition did not come about"
        time.sleep(0.002)
