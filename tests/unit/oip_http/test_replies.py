from __future__ import annotations

import pytest

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.dataplane import Parameter
from upwell.shared.oip.error_statuses import INTERNAL, STATUSES
from upwell.shared.oip.http.replies import HTTP_STATUSES, Rejected, error_reply
from upwell.shared.oip.http.server.request import fact_headers


def test_every_status_of_the_catalogue_has_one_of_http() -> None:
    assert {*STATUSES.values(), INTERNAL.code} <= set(HTTP_STATUSES)
    assert all(status >= 400 for status in HTTP_STATUSES.values())


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (InvalidRequest("é"), 400, {"Upwell-Status": "INVALID_ARGUMENT"}),
        (Rejected(401, "é", (("Upwell-Status", "UNAUTHENTICATED"),)), 401, {"WWW-Authenticate": "Bearer"}),
        (Rejected(405, "é", (("Allow", "GET"),)), 405, {"Allow": "GET"}),
    ],
)
def test_an_error_is_said_in_json_that_is_ascii(error: Exception, status: int, headers: dict[str, str]) -> None:
    reply = error_reply(error)
    assert reply.status == status
    assert b"".join(reply.body) == b'{"error":"\\u00e9"}'
    assert headers.items() <= dict(reply.headers).items()
    assert reply.size_bytes == len(b"".join(reply.body))


def test_only_facts_of_ours_that_a_header_can_carry_become_headers() -> None:
    facts: dict[str, Parameter] = {
        "upwell.cloud_queue_ms": 0.25, "upwell.degraded": True, "upwell.routes": "edge,cloud" * 200,
        "other": 1, "upwell.a b": 1, "upwell.é": 1, "upwell.x": "a\r\nSet-Cookie: b", "upwell.:": 1,
    }  # fmt: skip
    headers = dict(fact_headers(facts))
    assert set(headers) == {"Upwell-Cloud-Queue-Ms", "Upwell-Degraded", "Upwell-Routes"}
    assert headers["Upwell-Degraded"] == "true"
    assert len(headers["Upwell-Routes"]) == 1000
