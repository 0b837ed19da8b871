"""A service under attack: its process, its memory, a good request to hold against it, and what is done to it."""

from __future__ import annotations

import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np

from tests.faults.programs import UPWELL, Program
from tests.unit.models_for_tests import identity, linear, slow
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient

LIMIT_S = 20.0
"""For what should end long before."""
GIVEN_BACK_S = 120.0
PACE_S = 0.05
"""Between two looks at what changes by itself, so that the looking takes no time from others."""

PICTURES = """\
version: 1
signature: {inputs: {picture: {kind: image}}, outputs: {pixels: {kind: tensor}}}
pre: [{decode: picture}, {resize: {to: [8, 8]}}, {normalize: {}}, {layout: NCHW}]
post: [{rename: {from: y, to: pixels}}]
"""
GOOD = InferRequest("linear", {"x": np.ones((1, 8), np.float32)}, id="good")
BAD = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE)
"""What no caller may bring about: a bug, an exception that nobody caught, a service that is gone."""

METHOD = "/inference.GRPCInferenceService/ModelInfer"
FORBIDDEN = ("Traceback", "/home", "/root", "/usr", "/work", "/tmp", ".py", "upwell.", "grpc._", "0x", "site-packages")  # noqa: S108  looked for, not used
"""What must be in no text for a caller: places on the machine, and the program's insides."""


@dataclass
class Target:
    """A running service, and a client that behaves."""

    program: Program
    grpc: str
    http: str
    client: OipClient

    def good(self) -> None:
        """Ask what is to be answered, and see that it is answered rightly."""
        answer = self.client.infer(GOOD, LIMIT_S)
        assert answer.outputs["scores"].shape == (1, 3)
        assert answer.id == GOOD.id

    def resident_bytes(self) -> int:
        """Its memory, once that has stopped falling: what was freed is given back with a delay."""
        least, since_s = self._now_bytes(), time.monotonic()
        until_s = since_s + 10.0
        while time.monotonic() < min(until_s, since_s + 1.0):
            self.good()
            time.sleep(PACE_S)
            now = self._now_bytes()
            if now < 0.99 * least:
                least, since_s = now, time.monotonic()
        return least

    def gives_back(self, before_bytes: int) -> None:
        """Wait until it has less than a tenth more memory than before, while nobody asks it for anything.

        It looks for what it can give back every second, and less often, to once a minute, where that did not help.
        """
        until_s = time.monotonic() + GIVEN_BACK_S
        while (now := self._now_bytes()) >= 1.1 * before_bytes:
            assert time.monotonic() < until_s, (before_bytes, now)
            time.sleep(PACE_S)

    def peak_bytes(self) -> int:
        """The most memory that it has had since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        """Let the peak begin anew."""
        Path(f"/proc/{self.program.pid}/clear_refs").write_text("5")

    def threads(self) -> int:
        """How many threads it has."""
        return len(list(Path(f"/proc/{self.program.pid}/task").iterdir()))

    def _now_bytes(self) -> int:
        return self._status("VmRSS")

    def _status(self, key: str) -> int:
        lines = Path(f"/proc/{self.program.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def write_models(root: Path) -> Path:
    """`linear`, `slow`, and `pictures`, whose input is an encoded picture."""
    for name, make in (
        ("linear", linear),
        ("slow", lambda folder: slow(folder, size=512, layers=20)),
        ("pictures", lambda folder: identity(folder, "FP32", ("rows", 3, 8, 8))),
    ):
        folder = root / name / "1"
        folder.mkdir(parents=True)
        make(folder).rename(folder / "model.onnx")
    (root / "pictures" / "1" / "model.yaml").write_text(PICTURES)
    return root


@contextmanager
def _few_files() -> Iterator[None]:
    """Programs that begin in the block may have no more files open than some systems allow at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def attacked(folder: Path, *, serve: str = "", defaults: str = "instances: 2, max_queue: 16") -> Iterator[Target]:
    """A service of these models; `serve` and `defaults` are further keys of its cloud.yaml."""
    write_models(folder / "models")
    (folder / "cloud.yaml").write_text(
        f"version: 1\nserve: {{listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0'], models: models{serve}}}\n"
        f"defaults: {{{defaults}}}\n"
    )
    with ExitStack() as stack:
        with _few_files():
            program = stack.enter_context(Program(["serve", "-c", str(folder / "cloud.yaml")], [UPWELL]))
        address = program.address()
        client = OipClient(address)
        yield Target(program, address, program.find(r"HTTP on (\S+)"), client)
        client.close()


def valid_messages() -> Sequence[bytes]:
    """Requests that are answered, of every kind of contents, small and large enough to be taken apart."""
    raw = converters.serialize_infer_request(
        InferRequest("linear", {"x": np.ones((2, 8), np.float32)}, "1", "id-1", ("scores",), {"tag": "a", "n": 3})
    )
    large = converters.serialize_infer_request(InferRequest("linear", {"x": np.ones((2500, 8), np.float32)}, id="id-2"))
    picture = np.empty(1, dtype=np.object_)
    picture[0] = b"\x89PNG\r\n\x1a\nno picture"
    texts = converters.serialize_infer_request(InferRequest("pictures", {"picture": picture}))
    typed = bytes.fromhex("0a066c696e656172") + _field(5, _typed())
    return raw, typed, texts, large


def _typed() -> bytes:
    values = _field(6, np.ones(8, "<f4").tobytes())
    return _field(1, b"x") + _field(2, b"FP32") + _field(3, bytes([1, 8])) + _field(5, values)


def _field(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes([number << 3 | 2, len(value)]) + value


def mutated(message: bytes, source: random.Random) -> bytes:
    """The message with one to three things done to it at random places."""
    data = bytearray(message)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(data)) if data else 0
        # Of a large message mostly the part that says what the rest is.
        if len(data) > 200 and source.random() < 0.8:
            at = source.randrange(100)
        source.choice(_CHANGES)(data, at, source)
    return bytes(data)


def _flip(data: bytearray, at: int, source: random.Random) -> None:
    if data:
        data[at] ^= 1 << source.randrange(8)


def _overwrite(data: bytearray, at: int, source: random.Random) -> None:
    data[at : at + 4] = source.randbytes(source.randint(1, 4))


def _insert(data: bytearray, at: int, source: random.Random) -> None:
    data[at:at] = source.randbytes(source.randint(1, 8))


def _remove(data: bytearray, at: int, source: random.Random) -> None:
    del data[at : at + source.randint(1, 8)]


def _cut_off(data: bytearray, at: int, _: random.Random) -> None:
    del data[at:]


def _repeat(data: bytearray, at: int, source: random.Random) -> None:
    data[at:at] = data[at : at + source.randint(1, 40)] * source.randint(1, 3)


def _huge_number(data: bytearray, at: int, source: random.Random) -> None:
    data[at : at + 1] = b"\xff" * source.randint(1, 10) + b"\x01"


_CHANGES: Sequence[Callable[[bytearray, int, random.Random], None]] = (
    _flip, _flip, _overwrite, _insert, _remove, _cut_off, _repeat, _huge_number,
)  # fmt: skip


def statuses(
    address: str, messages: Iterable[bytes], *, every: int = 0, then: Callable[[], None] = lambda: None
) -> Counter[grpc.StatusCode]:
    """What became of each message, one after another; after each `every` of them `then` is called.

    Fails at once where an answer says what it must not.
    """
    found: Counter[grpc.StatusCode] = Counter()
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        for index, message in enumerate(messages, 1):
            code, text = grpc.StatusCode.OK, ""
            try:
                call(message, timeout=LIMIT_S)
            except grpc.RpcError as error:
                code, text = error.code(), error.details() or ""
            assert code not in BAD, (code, text, message[:300])
            assert not any(word in text for word in FORBIDDEN), (text, message[:300])
            found[code] += 1
            if every and index % every == 0:
                then()
    return found
