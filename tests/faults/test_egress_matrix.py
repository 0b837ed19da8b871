"""`egress: deny` by every way in, under every policy and cloud: no mark of a private request reaches anybody."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.certificates import Authority
from tests.faults.egress_matrix import ALL, BEHAVIOURS, ROUTES, SOME, WAYS, fill, matrix

pytest.importorskip("cel_expr_python")
pytest.importorskip("opentelemetry.sdk")


def ask_all(
    route: str, folder: Path, authority: Authority, policies: Sequence[str], behaviours: Sequence[str]
) -> tuple[int, dict[str, dict[int, str]]]:
    """How many private requests were sent, and who heard of which."""
    with matrix(route, folder, authority) as at:
        at.set_policy(SOME["the first rule"])
        at.ask_public()
        fill(at, policies, behaviours, [*WAYS])
        pages = at.read_pages()
        at.agent.close()  # which delivers the spans
        assert at.collector.spans
        return len(at.asked), at.leaked(pages)


@pytest.mark.parametrize("route", ROUTES)
def test_no_mark_of_a_private_request_reaches_anybody(route: str, folder: Path, authority: Authority) -> None:
    """Two policies and two clouds by each route; `make test-all` has them all."""
    some = {
        "gRPC": ["the last rule", "kept", "every size"],
        "HTTP": ["hard", "sent again", "all day"],
        "gRPC by proxy": ["a source", "an expression", "every model"],
        "HTTPS by proxy": ["large", "what cannot be evaluated", "everything"],
    }
    count, leaked = ask_all(route, folder, authority, some[route], ["good", "draining"])
    assert leaked == {}
    assert count == 3 * 2 * 25


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("route", ROUTES)
def test_no_mark_reaches_anybody_under_any_policy_and_any_cloud(route: str, folder: Path, authority: Authority) -> None:
    count, leaked = ask_all(route, folder, authority, [*SOME, *ALL], [*BEHAVIOURS])
    print(f"{route}: {count} private requests")
    assert leaked == {}
    assert count == (len(SOME) + len(ALL)) * len(BEHAVIOURS) * 25
