"""Parses the options of `upwell partition plan --edge --cloud`: link, objective, bandwidth."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from upwell.shared.errors import ConfigError, Problem
from upwell.shared.partition.bandwidth import BandwidthSamples, LogNormal
from upwell.shared.partition.cost_graph import TierLink
from upwell.shared.partition.objectives import LinkPrices, Objective, Power, cost, energy, latency, weighted
from upwell.shared.partition.tier_profile import CLOUD, EDGE
from upwell.shared.units import parse_bits_per_second, parse_joules, parse_number, parse_seconds, parse_share
from upwell.tools.terminal import parsed

TIERS = (EDGE, CLOUD)
OBJECTIVES = ("latency", "energy", "cost", "weighted")
_POWER: Mapping[str, str] = {
    "busy": "busy_w",
    "idle": "idle_w",
    "send": "send_w",
    "receive": "receive_w",
    "byte": "joules_per_byte",
}
_PRICE: Mapping[str, str] = {"second": "cloud_second", "request": "cloud_request", "gb": "uplink_gb"}
_WATTS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(mW|W)")
_SIZE = re.compile(r"([0-9]{1,5})x([0-9]{1,5})")
T = TypeVar("T")


@dataclass(frozen=True)
class AdviseOptions:
    """The command-line options as written. `uplink` holds one rate or several samples."""

    edge: Path
    cloud: Path
    uplink: Sequence[str]
    rtt: str
    downlink: str | None = None
    spread: float = 1.0
    sure: str | None = None
    objective: str = "latency"
    power: Sequence[str] = ()
    price: Sequence[str] = ()
    weight: Sequence[str] = ()
    picture: Path | None = None
    picture_size: str | None = None
    quality: int | None = None
    stretch: float = 1.0
    plot: Path | None = None
    as_json: bool = False


def check_together(options: AdviseOptions) -> None:
    """Raise if an option is given that would have no effect."""
    parts = ("energy", "cost") if options.objective == "weighted" else (options.objective,)
    checks = {
        "--power": (options.power and "energy" not in parts, "applies only to --objective energy or weighted"),
        "--price": (options.price and "cost" not in parts, "applies only to --objective cost or weighted"),
        "--weight": (options.weight and options.objective != "weighted", "applies only to --objective weighted"),
        "--picture-size": (options.picture_size and options.picture is None, "applies only with --picture"),
        "--quality": (options.quality is not None and options.picture is None, "applies only with --picture"),
        "--stretch": (
            options.stretch != 1 and options.picture is None,
            "applies only to encoding a --picture; profiles have their own",
        ),
    }
    problems = [Problem(None, None, None, option, text) for option, (is_wrong, text) in checks.items() if is_wrong]
    if problems:
        raise ConfigError(problems)


def inverse_of(options: AdviseOptions) -> float:
    """The inverse bandwidth to plan with, in seconds per bit."""
    rates = [_positive_bps(text, "--uplink") for text in options.uplink]
    if len(rates) > 1 and options.spread != 1:
        raise ConfigError.at(None, "give either several --uplink rates, or one with --spread", "--spread")
    try:
        bandwidth = BandwidthSamples(rates) if len(rates) > 1 else LogNormal(rates[0], options.spread)
        if options.sure is None:
            return bandwidth.mean_inverse()
        return bandwidth.inverse_quantile(parsed("--sure", options.sure, parse_share))
    except ValueError as error:
        raise ConfigError.at(None, str(error), "--spread" if options.sure is None else "--sure") from None


def link_of(options: AdviseOptions, inverse: float) -> tuple[TierLink, bool]:
    """The link, and whether its downlink rate was assumed to equal the uplink."""
    rtt_s = parsed("--rtt", options.rtt, parse_seconds)
    bps = 1 / inverse
    down_bps = bps if options.downlink is None else _positive_bps(options.downlink, "--downlink")
    return TierLink(bps, rtt_s, down_bps), options.downlink is None


def objective_of(options: AdviseOptions) -> Objective:
    """The quantity to minimize, with the power and prices that it needs."""
    makers: Mapping[str, Callable[[AdviseOptions], Objective]] = {
        "latency": lambda _: latency(TIERS),
        "energy": _energy,
        "cost": _cost,
        "weighted": lambda given: weighted([(weight, makers[name](given)) for name, weight in _weights(given).items()]),
    }
    if options.objective not in makers:
        raise ConfigError.at(None, f"expected one of {', '.join(OBJECTIVES)}, got {options.objective!r}", "--objective")
    return makers[options.objective](options)


def picture_size_of(options: AdviseOptions) -> tuple[int, int] | None:
    """Width and height."""
    if options.picture_size is None:
        return None
    match = _SIZE.fullmatch(options.picture_size)
    if match is None:
        raise ConfigError.at(
            None, f"expected WIDTHxHEIGHT in pixels, such as 416x736, got {options.picture_size!r}", "--picture-size"
        )
    return int(match[1]), int(match[2])


def _energy(options: AdviseOptions) -> Objective:
    given = _pairs(options.power, _POWER, "--power", "busy=5W")
    if "busy" not in given:
        raise ConfigError.at(
            None, "energy needs the power that the device draws while it computes, such as --power busy=5W", "--power"
        )
    values = {
        _POWER[key]: parsed(f"--power {key}", text, parse_joules if key == "byte" else _parse_watts)
        for key, text in given.items()
    }
    return energy(TIERS, Power(**values))


def _cost(options: AdviseOptions) -> Objective:
    given = _pairs(options.price, _PRICE, "--price", "gb=4.0")
    values = {_PRICE[key]: parsed(f"--price {key}", text, parse_number) for key, text in given.items()}
    if not any(values.values()):
        raise ConfigError.at(
            None, f"cost needs at least one price ({', '.join(_PRICE)}), such as --price gb=4.0", "--price"
        )
    return cost(TIERS, LinkPrices(**values))


def _weights(options: AdviseOptions) -> dict[str, float]:
    known = {name: name for name in OBJECTIVES if name != "weighted"}
    given = _pairs(options.weight, known, "--weight", "latency=1")
    weights = {name: parsed(f"--weight {name}", text, parse_number) for name, text in given.items()}
    if not any(weights.values()):
        raise ConfigError.at(None, "weighted needs at least one weight, such as --weight latency=1", "--weight")
    return {name: weight for name, weight in weights.items() if weight}


def _pairs(texts: Sequence[str], known: Mapping[str, str], option: str, example: str) -> dict[str, str]:
    """`["gb=4.0"]` -> `{"gb": "4.0"}`, each key once."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or key not in known or key in found:
            raise ConfigError.at(
                None, f"expected each of {', '.join(known)} at most once, such as {example}, got {text!r}", option
            )
        found[key] = value
    return found


def _parse_watts(text: str) -> float:
    match = _WATTS.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a power such as 5W or 500mW, got {text!r}")
    return float(match[1]) * (1.0 if match[2] == "W" else 1e-3)


def _positive_bps(text: str, option: str) -> float:
    bps = parsed(option, text, parse_bits_per_second)
    if not 0 < bps < math.inf:
        raise ConfigError.at(None, "expected more than 0", option)
    return bps
