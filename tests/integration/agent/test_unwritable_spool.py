"""A spool that can no longer be written: the caller is answered, and `/health` says so."""

from __future__ import annotations

from pathlib import Path

from tests.faults.oracles import pictures
from tests.faults.scene import write_agent
from tests.integration.agent.kept import SPOOLED, STATE
from tests.integration.spool.harness import until
from upwell.edge.server.agent_assembly import embedded_agent


def test_health_says_that_no_case_can_be_stored(tmp_path: Path) -> None:
    (tmp_path / "state" / "spool.db").mkdir(parents=True)
    with embedded_agent(write_agent(tmp_path, {"defaults": SPOOLED}, "127.0.0.1:1", agent=STATE)) as agent:
        answer = agent.infer("digits", {"image": pictures([0])})
        assert (answer.route, answer.reason, answer.spool_id) == ("edge", "cloud_unavailable", "")
        until(lambda: agent.health_document()["problems"] != [])
        (problem,) = agent.health_document()["problems"]
        assert "spool.db cannot be written; requests are still answered, but no cases are spooled" in problem
        assert agent.health_document()["status"] == "degraded"
