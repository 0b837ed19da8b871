"""Names that both sides use in OpAMP messages."""

from __future__ import annotations

PATH = "/v1/opamp"
CONTENT_TYPE = "application/x-protobuf"

CASES_PATH = "/v1/cases"
"""The path below which a device delivers cases: `PUT <id>` with the case as body, or `POST <id>/url?size_bytes=N`,
answered with JSON that has the `url` in object storage."""

CASE_ID, CASE_SUFFIX = "[0-9a-f]{32}", ".case"

STATISTICS = "io.upwell.statistics/1"
"""Custom capability: the agent sends a message of type `counted`, JSON with `release`, `since_unix_s`, `counts` and
`demand`, the figures of each model for sharing budgets (`upwell.shared.opamp.model_demand`)."""

DRIFT = "io.upwell.drift/1"
"""Custom capability: the agent sends `found` (JSON with `models`, the drift report of each watched model)."""

EXPLAIN = "io.upwell.explain/1"
"""Custom capability: the service sends `ask` (JSON with `id` and `request`), and the agent answers with `told` (`id`
and either `sections`, headings with lines, or `error`)."""

SHADOW = "io.upwell.shadow/1"
"""Custom capability: the agent sends `lines` (JSON with `release`, `lines` of a request log, and a `problem`)."""

RELEASE_PACKAGE = "release"
"""The package whose version is the sequence number of the running release."""

WISH_FILE = "fleet.json"
"""The one file of the remote configuration; see `upwell.shared.opamp.remote_configuration`."""

DIGEST_TYPE = "text/x-digest"
"""Content type of a file in the effective configuration that is reported only as a digest."""

LABEL = "upwell.label."
"""Prefix of the attributes that hold an agent's labels."""

AGENT_NAME = "upwell.agent.name"

INSTANCE_UID = "upwell.instance_uid"
"""The attribute of metrics that identifies the device to the fleet service."""


def case_upload_s(size_bytes: int) -> float:
    """Time limit for uploading a case (seconds): enough for a link of 160 kbit/s, plus half a minute."""
    return 30.0 + size_bytes / 20_000
