"""When to try again, in the trailers of an error."""

from __future__ import annotations

import grpc
import pytest

from upwell.shared.errors import InvalidRequest, Refused
from upwell.shared.oip.retrying import trailers
from upwell.shared.oip.statuses import Status, status_of


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
