"""`upwell policy calibrate`: from a request log to a policy with a threshold for a target share or risk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from upwell.shared.config.yaml import read_text
from upwell.shared.errors import EXIT_FAILED, ConfigError
from upwell.shared.files import write_named
from upwell.shared.routing.calibration.pair_calibration import CalibrationResult, Target, by_model_pair, calibration_of
from upwell.shared.routing.calibration.threshold_choice import CannotCalibrate
from upwell.shared.routing.hardness import RISING
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import HardSettings, ModelPair
from upwell.shared.routing.request_log_line import LogLine
from upwell.tools.plot_style import check_plot
from upwell.tools.policy.policy_yaml_writer import PolicyText, as_percent, evidence
from upwell.tools.policy.request_log_reader import read_log
from upwell.tools.terminal import AsJson, PolicyArgument, percent, plain, share, stderr_console, stdout_console

_LONGEST_S = 1e10
_UNIX_TIME_S = 1e8
"""The value (1973) from which `t_s` is Unix time, as in agents' logs; smaller ones count from any start."""
_SHARE = "The share of all requests to offload, such as 20%, including large ones."
_RISK = "The largest share of all requests that the device answers wrongly where the cloud is right, such as 2%."


@dataclass(frozen=True)
class CalibrationRefusal:
    """Models for which no threshold can be chosen, and why."""

    model: str
    model_pair: ModelPair
    reason: str


def calibrate(
    policy: PolicyArgument,
    log: Annotated[
        Path, typer.Option(metavar="LOG", help="The request log with the answers of both sides (JSON lines).")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The calibrated policy to write; may be POLICY itself.")],
    cloud_share: Annotated[str | None, typer.Option(help=_SHARE)] = None,
    max_risk: Annotated[str | None, typer.Option(help=_RISK)] = None,
    confidence: Annotated[str, typer.Option(help="The confidence of the risk.")] = "95%",
    model: Annotated[str | None, typer.Option(help="Only this model of the log.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw risk against share (.png, .svg, .pdf).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose the threshold of `hard` from a log, and write the policy with it.

    Nothing is written if the log is too small or the target is out of reach.
    """
    target = _target(cloud_share, max_risk, confidence)
    text = PolicyText(read_text(policy), policy)
    check_plot(plot)
    errors = stderr_console()
    with errors.status("reading the log and choosing"):
        found, refused = _calibrations(_by_model(log, model), text, target)
    left_out = sorted({one.model for one in refused} - {one.model for one in found})
    if not left_out:
        _write(text, found, policy, out)
        if plot is not None:
            from upwell.tools.policy.policy_plots import draw_calibrations

            write_named(plot, draw_calibrations(found, plot.suffix), "--plot", like=policy)
    for one in refused:
        errors.print(plain(f"{_named(one.model, one.model_pair)}: {one.reason}"))
    if left_out:
        errors.print("nothing is written", markup=False)
    if as_json:
        document = {
            "out": None if left_out else str(out),
            "calibrations": [_document(one) for one in found],
            "refused": [{"model": one.model, **asdict(one.model_pair), "reason": one.reason} for one in refused],
        }
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    elif not left_out:
        _show(found, out)
    if left_out:
        raise typer.Exit(EXIT_FAILED)


def _target(cloud_share: str | None, max_risk: str | None, confidence: str) -> Target:
    if (cloud_share is None) == (max_risk is None):
        raise ConfigError.at(None, "expected one of --cloud-share 20% and --max-risk 2%")
    if cloud_share is not None:
        why = "0% is `hard: off`, 100% a rule `route: cloud`"
        return Target(cloud_share=_open_share("--cloud-share", cloud_share, why))
    return Target(
        max_risk=_open_share("--max-risk", str(max_risk), "no log can show 0%, and 100% is no limit"),
        confidence=_open_share("--confidence", confidence, "no log makes anything certain"),
    )


def _open_share(option: str, text: str, why: str) -> float:
    found = share(option, text)
    if not 0 < found < 1:
        raise ConfigError.at(None, f"expected more than 0% and less than 100%, got {text}: {why}", option)
    return found


def _by_model(log: Path, model: str | None) -> Mapping[str, list[LogLine]]:
    lines: dict[str, list[LogLine]] = {}
    for line in read_log(log):
        lines.setdefault(line.model, []).append(line)
    if any(line.t_s > _LONGEST_S for group in lines.values() for line in group):
        raise ConfigError.at(log, f"expected t_s of at most {_LONGEST_S:g} seconds")
    if model is None:
        return lines
    if model not in lines:
        raise ConfigError.at(log, f"has no request of {model!r}; it has {', '.join(sorted(lines))}", "--model")
    return {model: lines[model]}


def _calibrations(
    by_model: Mapping[str, list[LogLine]], text: PolicyText, target: Target
) -> tuple[list[CalibrationResult], list[CalibrationRefusal]]:
    for model in by_model:
        text.set_target(model, target)
    policy = text.policy()
    found: list[CalibrationResult] = []
    refused: list[CalibrationRefusal] = []
    for model, lines in by_model.items():
        hard, compiled = _plain(policy, model), CompiledPolicy(_at_no_hour(policy, lines))
        for model_pair, group in by_model_pair(lines).items():
            try:
                found.append(calibration_of(group, compiled, hard, model_pair, target))
            except CannotCalibrate as error:
                refused.append(CalibrationRefusal(model, model_pair, str(error)))
    return found, refused


def _plain(policy: Policy, model: str) -> HardSettings:
    """The settings of `hard` as written, without any former calibration."""
    hard = policy.model_copy(update={"calibrations": []}).settings(model, None).hard
    assert hard is not None  # noqa: S101  `PolicyText.set_target` refuses a `hard` that is off
    return hard


def _at_no_hour(policy: Policy, lines: Sequence[LogLine]) -> Policy:
    """The policy without its rules about hours, if the requests' time of day is unknown."""
    if any(line.t_s >= _UNIX_TIME_S for line in lines):
        return policy
    return policy.model_copy(update={"rules": [rule for rule in policy.rules if rule.match.hours is None]})


def _write(text: PolicyText, found: Sequence[CalibrationResult], policy: Path, out: Path) -> None:
    for calibration in found:
        text.add(calibration)
    calibrated = text.policy()
    for one in found:
        hard = calibrated.settings(one.model, None, one.model_pair).hard
        if hard is None or not hard.calibrated or hard.threshold != one.threshold:
            raise ConfigError.at(
                policy, f"another calibration hides the new one of {_named(one.model, one.model_pair)}", "calibrations"
            )
    write_named(out, text.text().encode(), like=policy)


def _document(one: CalibrationResult) -> dict[str, Any]:
    target = one.target
    asked = (
        {"cloud_share": target.cloud_share}
        if target.is_share
        else {"max_risk": target.max_risk, "confidence": target.confidence}
    )
    return {
        "model": one.model,
        **asdict(one.model_pair),
        "measure": one.hard.measure,
        "above" if one.hard.measure in RISING else "below": one.threshold,
        **one.hard.fit._asdict(),
        **asked,
        "evidence": evidence(one),
        "auroc": None if math.isnan(one.discrimination.auroc) else one.discrimination.auroc,
        "other_measures": dict(one.discrimination.others),
        "shares": [asdict(bought) for bought in one.discrimination.bought],
        "warnings": list(one.warnings),
    }


def _show(found: Sequence[CalibrationResult], out: Path) -> None:
    console = stdout_console()
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    for name in ("", "requests", "go up", "kept and wrong", "at most"):
        table.add_column(name, justify="left" if not name else "right")
    for one in found:
        for name, part in (("nothing hard", one.nothing_hard), ("chosen", one.chosen), ("held out", one.held_out)):
            numbers = (percent(part.share), percent(part.risk), percent(part.risk_bound))
            table.add_row(plain(f"{one.model}, {name}"), str(part.requests), *numbers)
    console.print(table)
    for one in found:
        console.print()
        console.print(plain(_sentence(one)))
        _show_worth(console, one)
        _show_qualities(console, one)
        for warning in one.warnings:
            console.print(plain(f"note: {warning}"))
    console.print()
    console.print(plain(f"written to {out}"))


def _show_worth(console: Console, one: CalibrationResult) -> None:
    worth = one.discrimination
    if math.isnan(worth.auroc):
        return
    others = ", ".join(f"{name} {area:.2f}" for name, area in worth.others.items())
    beside = f" ({others})" if others else ""
    console.print(
        plain(f"{one.hard.measure} predicts what the cloud corrects with an AUROC of {worth.auroc:.2f}{beside}")
    )
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    for name in ("go up", "kept and wrong", "at random", "at best"):
        table.add_column(name, justify="right")
    for bought in worth.bought:
        table.add_row(
            percent(bought.share), percent(bought.risk), percent(bought.random_risk), percent(bought.best_risk)
        )
    console.print(table)


def _show_qualities(console: Console, one: CalibrationResult) -> None:
    if not one.qualities:
        return
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False)
    for name in ("quality", "requests", "bytes", "same answer", "at least"):
        table.add_column(name, justify="right")
    for cost in one.qualities:
        shares = (percent(cost.bytes_share), percent(cost.agreement), percent(cost.agreement_bound))
        table.add_row(str(cost.quality), str(cost.requests), *shares)
    console.print(table)


def _sentence(one: CalibrationResult) -> str:
    direction = "above" if one.hard.measure in RISING else "below"
    fit = one.hard.fit
    moves = [f"divided by {fit.temperature:g}"] if fit.temperature != 1.0 else []
    if fit.bias != 0.0:
        moves.append(f"shifted by {fit.bias:g}")
    if fit.hidden_slope != 1.0:
        moves.append(f"{fit.hidden_slope:g} times as steep for objects not shown")
    if fit.support != 0.0:
        moves.append(f"{'raised' if fit.support > 0 else 'lowered'} by {abs(fit.support):g} ln of the support")
    moved = f", logits {' and '.join(filter(None, (', '.join(moves[:-1]), moves[-1])))}" if moves else ""
    rule = f"{one.hard.measure} {direction} {one.threshold:.4g} is hard{moved}"
    if one.target.is_share:
        what = f"so {percent(one.chosen.share)} of all requests go up (asked for: {as_percent(one.target.cloud_share)})"
    else:
        what = (
            f"so with {as_percent(one.target.confidence)} confidence at most {as_percent(one.target.max_risk)} of all "
            f"requests are kept and wrong where the cloud is right, and {percent(one.chosen.share)} go up"
        )
    return f"{_named(one.model, one.model_pair)}: {rule}, {what}."


def _named(model: str, model_pair: ModelPair) -> str:
    parts = [part[:19] for part in (model_pair.edge_digest, model_pair.edge_runtime, model_pair.cloud_digest) if part]
    return f"{model} ({', '.join(parts)})" if parts else model
