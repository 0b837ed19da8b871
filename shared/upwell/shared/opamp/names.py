"""Names that both sides use in messages of OpAMP."""

from __future__ import annotations

PATH = "/v1/opamp"
CONTENT_TYPE = "application/x-protobuf"

CASES_PATH = "/v1/cases"
"""Below it a device brings cases home: `PUT <id>` with the case as body, or `POST <id>/url?size_bytes=N` for JSON with
the `url` of object storage to put it to."""

CASE_ID, CASE_SUFFIX = "[0-9a-f]{32}", ".case"

STATISTICS = "io.upwell.statistics/1"
"""Custom capability: the agent sends a message of type `counted`, JSON with `release`, `since_unix_s`, `counts` and
`demand`, which has for each model what a budget is shared out by (`upwell.shared.opamp.demand`)."""

DRIFT = "io.upwell.drift/1"
"""Custom capability: the agent sends `found` (JSON with `models`, the drift report of each model that is watched)."""

EXPLAIN = "io.upwell.explain/1"
"""Custom capability: the service sends `ask` (JSON with `id` and `request`), and the agent answers with `told` (`id`
and either `sections`, headings with lines, or `error`)."""

SHADOW = "io.upwell.shadow/1"
"""Custom capability: the agent sends `lines` (JSON with `release`, `lines` of a request log, and a `problem`)."""

RELEASE_PACKAGE = "release"
"""The package whose version is the sequence number of the release that runs."""

WISH_FILE = "fleet.json"
"""The one file of the remote configuration; see `upwell.shared.opamp.wish`."""

DIGEST_TYPE = "text/x-digest"
"""The content type of a file of the effective configuration that is told as its digest alone."""

LABEL = "upwell.label."
"""Attributes of an agent that begin so are its labels."""

AGENT_NAME = "upwell.agent.name"

INSTANCE_UID = "upwell.instance_uid"
"""In metrics: the device as the fleet service knows it."""


def case_upload_s(size_bytes: int) -> float:
    """How long a case may take on its way: what a link of 160 kbit/s needs, and half a minute."""
    return 30.0 + size_bytes / 20_000
