"""When to try again, in the trailers of an error."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upwell.shared.errors import InvalidRequest, Refused
from upwell.shared.oip.error_statuses import Status, status_of
from upwell.shared.oip.retry_after import retry_after_s, told_by_headers, told_by_trailers, trailers


def refused(after_s: float | None) -> Status:
    return status_of(Refused("full", retry_after_s=after_s))


def test_only_an_error_that_knows_says_when() -> None:
    assert trailers(refused(None)) == ()
    assert trailers(status_of(InvalidRequest("x"))) == ()
    assert refused(None).code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_it_is_said_as_grpc_and_as_google_s_libraries_read_it() -> None:
    said = dict(trailers(refused(1.25)))
    assert said["grpc-retry-pushback-ms"] == "1250"
    # As googleapis-common-protos 1.76.0 writes Status(code=8, message="full") with a RetryInfo of 1.25 s.
    details = (
        b"\x08\x08\x12\x04full\x1a5\n(type.googleapis.com/google.rpc.RetryInfo\x12\t\n\x07\x08\x01\x10\x80\xe5\x9aw"
    )
    assert said["grpc-status-details-bin"] == details


@pytest.mark.parametrize(("after_s", "said_ms"), [(0.0, 1), (0.0101, 11), (2.0, 2000), (1e9, 86_400_000)])
def test_it_is_said_in_whole_milliseconds_from_1_to_a_day(after_s: float, said_ms: int) -> None:
    assert dict(trailers(refused(after_s)))["grpc-retry-pushback-ms"] == str(said_ms)


# --- Heeding it


@pytest.mark.parametrize("after_s", [0.001, 0.0101, 1.25, 7200.0])
def test_what_we_say_we_understand_by_either_trailer(after_s: float) -> None:
    said = trailers(refused(after_s))
    assert [told_by_trailers([one]) for one in said] == pytest.approx([after_s, after_s], abs=1.1e-3)
    assert told_by_trailers([("other", "5"), *said]) == told_by_trailers(said[:1])


NOTHING_SAID: list[list[tuple[str, str | bytes]] | None] = [
    None,
    [],
    [("grpc-retry-pushback-ms", "-1")],
    [("grpc-retry-pushback-ms", "soon")],
    [("grpc-retry-pushback-ms", "9" * 40)],
    [("grpc-retry-pushback-ms", b"5")],
    [("grpc-status-details-bin", "text")],
    [("grpc-status-details-bin", b"\x08\x08\x12\x04full")],
    [("grpc-status-details-bin", b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f")],
    [("grpc-status-details-bin", b"\xff" * 100)],
    [("grpc-status-details-bin", b"\x1a\x02\x0a\x00" * 5000)],
]


@pytest.mark.parametrize("trailing", NOTHING_SAID, ids=range(len(NOTHING_SAID)))
def test_what_cannot_be_read_says_nothing(trailing: list[tuple[str, str | bytes]] | None) -> None:
    assert told_by_trailers(trailing) is None


@given(st.binary(max_size=80), st.integers(0, 60), st.binary(max_size=3))
def test_no_details_of_a_stranger_s_break_it(noise: bytes, at: int, bits: bytes) -> None:
    details = dict(trailers(refused(1.25)))["grpc-status-details-bin"]
    assert isinstance(details, bytes)
    for data in (noise, details[:at], details[:at] + bits + details[at + len(bits) :]):
        told = told_by_trailers([("grpc-status-details-bin", data)])
        assert told is None or 0 < told < 2**32


@pytest.mark.parametrize(
    ("milliseconds", "seconds", "told"),
    [
        ("", "", None),
        ("50", "1", 0.05),
        ("", "3", 3.0),
        ("soon", " 2 ", 2.0),
        ("-5", "-1", None),
        ("", "1.5", None),
        ("", "Wed, 21 Oct 2015 07:28:00 GMT", None),
        ("", "\u0663", None),
        ("9" * 30, "9" * 30, None),
    ],
)
def test_the_headers_of_http_say_it_in_milliseconds_or_seconds(
    milliseconds: str, seconds: str, told: float | None
) -> None:
    assert told_by_headers(milliseconds, seconds) == told


@pytest.mark.parametrize(
    ("said", "pause_s"),
    [
        ("", 0.0),
        ("0", 0.0),
        ("120", 120.0),
        ("0000000000120", 120.0),
        ("soon", 0.0),
        ("-5", 0.0),
        ("\u0661", 0.0),
        ("1e3", 0.0),
        ("inf", 0.0),
        ("9" * 400, 86_400.0),
        ("9" * 5000, 86_400.0),
        ("-" + "9" * 400, 0.0),
        ("Thu, 01 Jan 1970 01:00:00 GMT", 3540.0),
        ("Thu, 01 Jan 1970 00:00:59 GMT", 0.0),
        ("Sat, 01 Aug 2099 10:00:00 GMT", 86_400.0),
        (f"Sat, 01 Aug 2099 10:00:00 +{'9' * 30}", 0.0),
        ("Sat, 01 Aug 99999 10:00:00 GMT", 0.0),
    ],
    ids=range(17),
)
def test_a_pause_is_a_number_of_seconds_or_a_date_and_at_most_a_day(said: str, pause_s: float) -> None:
    assert retry_after_s(said, 60.0) == pause_s
