"""`upwell policy explain`: one decision step by step."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import printable
from upwell.shared.routing.decide.explanation import NOW_S, Explanation, ExplanationStep, Inquiry, Setting
from upwell.shared.routing.decide.explanation import explain as explained
from upwell.shared.routing.policy.compiled_policy import Finding, Verdict
from upwell.shared.routing.policy.policy import Policy, Rule
from upwell.shared.routing.reasons import chance_in_words
from upwell.tools.terminal import AsJson, PolicyArgument, finite, plain, stdout_console

_UNITS: Mapping[str, str] = {
    "deadline": " s",
    "hedge.after": " s",
    "large.above": " bytes",
    "record.keep": " bytes",
    "energy.inference": " J",
    "energy.uplink_byte": " J",
    "source.rate": "/s",
}


def explain(
    policy: PolicyArgument,
    request: Annotated[Path, typer.Option(help="The request as JSON; see docs/policy.md for its keys.")],
    as_json: AsJson = False,
) -> None:
    """Explain how a request would be routed and why: rules, settings and their origins, predictions, decision."""
    written, inquiry = load_yaml(policy, Policy), load_yaml(request, Inquiry)
    explanation = explained(written, inquiry, _wall_time_s(inquiry.time, written.timezone))
    if as_json:
        typer.echo(json.dumps(explanation_document(written, explanation)))
    else:
        _show(written, explanation)


def _zone(name: str) -> tzinfo:
    return timezone.utc if name == "UTC" else ZoneInfo(name)


def _wall_time_s(text: str | None, zone: str) -> float:
    """The Unix time of a request; by default now, and by default in the policy's time zone."""
    if text is None:
        return time.time()
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (at if at.tzinfo else at.replace(tzinfo=_zone(zone))).timestamp()


def explanation_document(policy: Policy, explanation: Explanation) -> dict[str, Any]:
    """The explanation as JSON: times in seconds, null for what is unknown or does not apply."""
    last = explanation.last
    return {
        "signals": _signals(policy, explanation),
        "plan": str(explanation.steps[0].decision.plan),
        "reason": str(explanation.reason),
        "degraded": explanation.degraded,
        "refusal": last.refusal or None,
        "up_rows": sorted({row for step in explanation.steps for row in step.decision.up_rows}),
        "predicted_s": {route: finite(value) for route, value in explanation.predicted_s.items()},
        "hardness": explanation.hardness,
        "rules": [
            {"name": rule.name, "matched": not rule.missed, "missed": rule.missed or None, "error": rule.error or None}
            for rule in explanation.rules
        ],
        "rule": last.verdict.rule or None,
        "egress_rule": last.verdict.egress_rule or None,
        "failed_rule": last.verdict.failed_rule or None,
        "settings": [{"key": one.key, "value": one.value, "from": one.origin} for one in explanation.settings],
        "steps": [_step(step) for step in explanation.steps],
    }


def _signals(policy: Policy, explanation: Explanation) -> dict[str, Any]:
    """The signals of request and link; the time is in the policy's zone."""
    signals, facts = explanation.signals, explanation.facts
    request_facts = signals.request_facts
    at = datetime.fromtimestamp(request_facts.wall_time_s, _zone(policy.timezone))
    return {
        "model": request_facts.model,
        "row_sizes_bytes": list(signals.row_sizes_bytes),
        "tags": dict(request_facts.tags),
        "time": at.isoformat(timespec="seconds"),
        "deadline_s": _rounded(signals.caller_deadline_s - NOW_S),
        "rtt_s": _rounded(facts.rtt_s),
        "up_bytes_per_s": _rounded(facts.up_bytes_per_s),
        "breaker_open": facts.breaker_open,
        "has_edge": signals.has_edge,
        "has_cloud": signals.has_cloud,
    }


def _step(step: ExplanationStep) -> dict[str, Any]:
    decision = step.decision
    return {
        "when": "after the edge run" if step.after_edge else "before the edge run",
        "plan": str(decision.plan),
        "reason": str(decision.reason),
        "up_rows": list(decision.up_rows),
        "kept_rows": list(decision.kept_rows),
        "obstacle": None if decision.obstacle is None else str(decision.obstacle),
        "chance": _rounded(decision.chance),
        "needed_chance": _rounded(decision.needed_chance),
        "quality": None if decision.quality is None else decision.quality.quality,
        "escalate": decision.escalate,
        "deadline_s": decision.deadline_s - NOW_S,
        "wait_for_cloud_until_s": decision.give_up_s - NOW_S,
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.9g}") if math.isfinite(value) else None


def _show(policy: Policy, explanation: Explanation) -> None:
    console = stdout_console()
    _heading(console, "Signals")
    for name, value in _signals(policy, explanation).items():
        console.print(plain(f"  {name}: {'unknown' if value is None else json.dumps(value, ensure_ascii=False)}"))
    _heading(console, "Rules")
    for rule, found in zip(policy.rules, explanation.rules, strict=True):
        console.print(plain(f"  {rule.name}: {_became(rule, found, explanation.last.verdict)}"))
    if not explanation.rules:
        console.print("  none")
    _heading(console, "Settings")
    table = Table.grid(padding=(0, 2))
    for one in explanation.settings:
        table.add_row(plain(f"  {one.key}"), plain(_value(one)), Text(printable(one.origin), style="dim"))
    console.print(table)
    _heading(console, "Predicted")
    for route, value in explanation.predicted_s.items():
        console.print(f"  {route}: {_ms(value)}")
    for step in explanation.steps:
        _heading(console, "After the edge run" if step.after_edge else "Before the edge run")
        for line in _lines(step, explanation.hardness):
            console.print(plain(f"  {line}"))


def _became(rule: Rule, found: Finding, verdict: Verdict) -> str:
    if found.missed:
        return f"error, so nothing leaves the device: {found.error}" if found.error else f"no: {found.missed}"
    does = ["nothing leaves the device"] if rule.egress else []
    if rule.name == verdict.rule:
        does.append("it decides")
    elif rule.route or rule.set:
        does.append(f"{verdict.rule} before it decides")
    return f"matches: {', and '.join(does)}"


def _lines(step: ExplanationStep, hardness: float | None) -> list[str]:
    decision = step.decision
    lines = [f"deadline {_ms(decision.deadline_s - NOW_S)} after arrival"]
    if step.after_edge:
        lines.append(f"hardness {hardness:g}")
    if math.isfinite(decision.chance):
        lines.append(chance_in_words(decision.chance, decision.needed_chance))
    if decision.up_rows:
        is_one = len(decision.up_rows) == 1
        rows = ", ".join(map(str, decision.up_rows))
        lines.append(f"row {rows} goes to the cloud" if is_one else f"rows {rows} go to the cloud")
    if decision.quality is not None:
        lines.append(f"pictures at quality {decision.quality.quality}: {decision.quality.agreement:.1%} same answers")
    if decision.obstacle is not None:
        lines.append(f"not sent to the cloud because of {decision.obstacle}")
    if decision.refusal:
        return [*lines, f"refused: {decision.refusal}"]
    lines.append(f"plan {decision.plan}, reason {decision.reason}" + (", degraded" if decision.degraded else ""))
    if decision.escalate:
        lines.append("decided again once the device has scored its rows")
    return lines


def _heading(console: Console, text: str) -> None:
    console.print(Text(text, style="bold"))


def _ms(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if math.isfinite(value) else "unknown"


def _value(setting: Setting) -> str:
    value = setting.value
    if isinstance(value, str | bool):
        return str(value).lower() if isinstance(value, bool) else value
    if isinstance(value, dict):
        return ", ".join(f"{name}: {part:.15g}" for name, part in value.items()) or "none"
    return f"{value:.15g}{_UNITS.get(setting.key, '')}"
