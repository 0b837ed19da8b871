from __future__ import annotations

import grpc
import pytest

from upwell.shared import errors
from upwell.shared.errors import ConfigError, InvalidRequest, UpwellError
from upwell.shared.oip.error_statuses import INTERNAL, MAX_TEXT_LENGTH, STATUSES, status_of


def tree() -> set[type[UpwellError]]:
    return {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, UpwellError) and not issubclass(kind, ConfigError)
    } - {UpwellError}


def test_every_error_that_may_reach_a_caller_has_a_status() -> None:
    assert set(STATUSES) == tree()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.ModelNotFound, grpc.StatusCode.NOT_FOUND),
        (errors.Refused, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.Superseded, grpc.StatusCode.ABORTED),
        (errors.NoAllowedRoute, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
        (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
        (errors.NotAllowed, grpc.StatusCode.PERMISSION_DENIED),
        (errors.NotLoaded, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.CallerLeft, grpc.StatusCode.CANCELLED),
        (errors.ModelFailed, grpc.StatusCode.INTERNAL),
        (errors.CloudFailed, grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_each_status_carries_the_error_s_own_sentence(kind: type[UpwellError], code: grpc.StatusCode) -> None:
    status = status_of(kind("what was wrong"))
    assert (status.code, status.text) == (code, "what was wrong")


def test_a_more_special_error_has_the_status_of_its_kind() -> None:
    class WrongShape(InvalidRequest):
        pass

    assert status_of(WrongShape("x")).code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("error", [KeyError("secret"), UpwellError("secret"), ConfigError.at(None, "secret")])
def test_anything_else_is_an_internal_error_without_its_text(error: Exception) -> None:
    assert status_of(error) is INTERNAL
    assert "secret" not in INTERNAL.text


def test_a_long_text_is_cut_to_what_a_trailer_holds() -> None:
    text = status_of(InvalidRequest("x" * 10_000)).text
    assert len(text) == MAX_TEXT_LENGTH
    assert text.endswith("…")
