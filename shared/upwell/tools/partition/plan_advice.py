"""`upwell partition plan --edge --cloud`: the best cut of a profiled model, and whether cutting pays at all.

Beside the cuts stands a compressed picture in place of the raw input: its bytes, and the time to encode and decode it.
The advice is written to `plan.json`, and summed up in sentences.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import typer
from PIL import Image
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.files import read_file, write_named
from upwell.shared.partition.bandwidth import BandwidthSweep, LabelledCost, Piece, envelope
from upwell.shared.partition.cost_graph import CostGraph, Placement
from upwell.shared.partition.model_graph import element_bytes
from upwell.shared.partition.objectives import Objective, latency
from upwell.shared.partition.plan_file import (
    AdviceFacts,
    AlternativeFacts,
    BaselineFacts,
    OptionFacts,
    PieceFacts,
    PlanFacts,
    RangeFacts,
    SentFacts,
)
from upwell.shared.partition.split_advice import (
    CLOUD_RAW,
    EDGE_ONLY,
    WORTH,
    Advice,
    Encoded,
    Option,
    OptionFactory,
    Wins,
    advise,
    tier_s,
)
from upwell.shared.partition.tier_profile import CLOUD, EDGE, Profile, combine, cut_name, load_profile, measured_cuts
from upwell.shared.signature.picture_codec import Color, decode, encode
from upwell.shared.signature.signature import UplinkEncoding
from upwell.shared.tensors import Array
from upwell.tools.partition.advice_options import (
    AdviseOptions,
    check_together,
    inverse_of,
    link_of,
    objective_of,
    picture_size_of,
)
from upwell.tools.plot_style import check_plot
from upwell.tools.terminal import stdout_console

MAX_PICTURE_BYTES = 64 << 20
MAX_PIXELS = 100_000_000
QUALITY = 85
MAX_SIDE = 16_383
"""WebP's size limit."""
_RUNS = 9
T = TypeVar("T")
_ALTERNATIVES = 5


def measure_picture(
    path: Path, profile: Profile, size: tuple[int, int] | None, quality: int, stretch: float
) -> Sequence[Encoded]:
    """Measure the picture at the size of the model's largest input, as JPEG and WebP of that quality and as PNG.

    `size` is width and height if they do not follow from the bytes of the input. Times are medians on this machine;
    those to encode are multiplied by `stretch`. Raises `ConfigError`.
    """
    pixels = _decoded(path)
    tensor, samples = _picture_input(profile)
    width, height, channels = _shape(samples, size, tensor)
    color: Color = "gray" if channels == 1 else "rgb"
    image = Image.fromarray(pixels).convert("L" if channels == 1 else "RGB").resize((width, height))
    small = np.asarray(image).reshape(height, width, channels)
    rows, found = profile.model.rows, list[Encoded]()
    for name, encoding in _encodings(quality):
        size_bytes, encode_s, decode_s = _measured(small, encoding, name, color)
        found.append(Encoded(name, tensor, float(rows * size_bytes), rows * stretch * encode_s, rows * decode_s))
    return found


def _encodings(quality: int) -> Iterator[tuple[str, UplinkEncoding]]:
    yield f"JPEG {quality}", UplinkEncoding("jpeg", quality)
    yield f"WebP {quality}", UplinkEncoding("webp", quality)
    yield "PNG", UplinkEncoding("png")


def _measured(pixels: Array, encoding: UplinkEncoding, name: str, color: Color) -> tuple[int, float, float]:
    """Bytes of one picture, and seconds to encode and to decode it."""
    data, encode_s = _timed(lambda: encode(pixels, encoding))
    if data is None:
        raise ConfigError.at(
            None, f"a picture of {pixels.shape[1]} x {pixels.shape[0]} cannot be encoded as {name}", "--picture-size"
        )
    encoded = data
    _, decode_s = _timed(lambda: decode(encoded, color, MAX_PIXELS))
    return len(encoded), encode_s, decode_s


def _timed(run: Callable[[], T]) -> tuple[T, float]:
    """The result of the function, and the median time of its warm runs in seconds."""
    result = run()
    times_s = []
    for _ in range(_RUNS):
        start_s = time.perf_counter()
        result = run()
        times_s.append(time.perf_counter() - start_s)
    return result, statistics.median(times_s)


def _decoded(path: Path) -> Array:
    try:
        return decode(read_file(path, "a picture", MAX_PICTURE_BYTES), "rgb", MAX_PIXELS)
    except InvalidRequest as error:
        raise ConfigError.at(path, str(error), "--picture") from None


def _picture_input(profile: Profile) -> tuple[str, int]:
    """The largest input, and how many numbers one of its rows has."""
    known = {name: profile.tensors[name] for name in profile.inputs if profile.tensors[name].bytes}
    if not known:
        raise ConfigError.at(None, "the model has no input of known size", "--picture")
    name = max(known, key=lambda one: known[one].bytes or 0)
    one_row = (known[name].bytes or 0) // profile.model.rows
    return name, one_row // max(1, element_bytes(known[name].datatype))


def _shape(samples: int, size: tuple[int, int] | None, tensor: str) -> tuple[int, int, int]:
    """Width, height and channels of an input of so many numbers: a square unless `size` says otherwise."""
    for channels in (3, 1):
        side = math.isqrt(samples // channels)
        width, height = size if size is not None else (side, side)
        if width * height * channels == samples and 0 < max(width, height) <= MAX_SIDE:
            return width, height, channels
    message = f"one row of the input {tensor!r} has {samples} numbers, which is not a picture with 1 or 3 channels"
    if size is None:
        raise ConfigError.at(None, f"{message} and equal sides; --picture-size gives its size", "--picture")
    raise ConfigError.at(None, f"{message} of {size[0]} x {size[1]} pixels", "--picture-size")


@dataclass(frozen=True)
class AdviceOutcome:
    """All findings. `graph` is in seconds, over the requested link."""

    edge: Profile
    cloud: Profile
    graph: CostGraph
    objective: Objective
    symmetric: bool
    pieces: Sequence[Piece[LabelledCost]]
    plan: Option
    advice: Advice
    picture: str = ""
    stretch: float = 1.0


def advice_document(outcome: AdviceOutcome) -> PlanFacts:
    """The plan for the current bandwidth, the envelope, and the advice."""
    inverse, plan = outcome.advice.inverse, outcome.plan
    totals = {option.name: option.seconds.at(inverse) for option in outcome.advice.options}
    others = {cut_name(outcome.graph, one.placement): one for one in reversed(outcome.advice.options)}
    others.pop(cut_name(outcome.graph, plan.placement), None)
    return PlanFacts(
        total_s=plan.seconds.at(inverse),
        placement=dict(plan.placement),
        sent=tuple(
            SentFacts.model_validate({"tensor": one.tensor, "from": one.source, "to": one.target, "bytes": one.bytes})
            for one in plan.seconds.of.sent
        ),
        baselines=BaselineFacts(edge_only_s=totals.get(EDGE_ONLY), cloud_only_s=totals.get(CLOUD_RAW)),
        alternatives=tuple(
            AlternativeFacts(placement=dict(option.placement), total_s=option.seconds.at(inverse))
            for option in sorted(others.values(), key=lambda one: one.seconds.at(inverse))[:_ALTERNATIVES]
        ),
        model=outcome.edge.model.digest,
        sizes=outcome.edge.model.sizes,
        envelope=tuple(_piece(outcome, piece) for piece in outcome.pieces),
        advice=_advice(outcome),
    )


def sentences(outcome: AdviceOutcome) -> tuple[str, ...]:
    """The conclusion in plain words, the verdict first."""
    advice = outcome.advice
    compared = ", ".join(option.name for option in advice.options if option.kind != "cut")
    at_hand = amount(advice.best.value.at(advice.inverse), outcome.objective)
    last = f"At {rate(1 / advice.inverse)}: {advice.best.name}, {at_hand}."
    if advice.cuts_pay:
        verdict = f"Splitting pays: {_where(advice.wins, True)}."
        return verdict, f"At best it is {advice.gain:.2f} times better than the best of {compared}.", last
    verdict = f"Splitting does not pay: no cut beats the best of {compared} by {WORTH:.0%} at any bandwidth."
    best = f"Best: {_where(advice.wins, False)}."
    if advice.raw_gain > 1:
        where = _where(advice.raw_wins, True)
        return (
            verdict,
            best,
            f"Against the raw input alone, a cut would win by up to {advice.raw_gain:.2f} times: {where}.",
            last,
        )
    return verdict, best, last


def _where(wins: Wins, cuts: bool) -> str:
    """`c6 from 36 to 42 Mbps, …`: where cuts win, or where everything else does."""
    return ", ".join(
        f"{piece.line.of.name} {_in_words(piece)}" for piece in wins if (piece.line.of.kind == "cut") == cuts
    )


def notes(outcome: AdviceOutcome) -> tuple[str, ...]:
    """The assumptions behind the figures, and what they leave out."""
    found = [
        f"The {profile.tier} side is simulated: {profile.machine.simulated}."
        for profile in (outcome.edge, outcome.cloud)
        if profile.machine.simulated
    ]
    if outcome.picture:
        slower = f"; encoding times are multiplied by {outcome.stretch:g}" if outcome.stretch != 1 else ""
        found.append(
            f"{outcome.picture} was encoded and decoded on this machine at the size of the model's input{slower}. "
            "JPEG and WebP change what the model sees: check its accuracy."
        )
    else:
        found.append("For the cloud, only the raw input tensor was compared; --picture adds a compressed one.")
    between_points = [option.name for option in outcome.advice.options if not option.is_measured]
    if between_points:
        found.append(f"Interpolated between measured cuts: {', '.join(between_points)}.")
    if outcome.symmetric:
        found.append("The downlink is assumed to be as fast as the uplink; --downlink sets its rate.")
    return tuple(found)


def rate(bps: float) -> str:
    """`8 Mbps`, `350 kbps`."""
    for unit, size in (("Gbps", 1e9), ("Mbps", 1e6), ("kbps", 1e3)):
        if bps >= 0.9995 * size:
            return f"{bps / size:.3g} {unit}"
    return f"{bps:.3g} bps"


def between(piece: Piece[Option]) -> str:
    """`≤ 2 Mbps`, `2 – 9 Mbps`, `≥ 9 Mbps`, `everywhere`."""
    if piece.from_bps > 0 and piece.to_bps < math.inf:
        (slow, unit), fast = rate(piece.from_bps).split(), rate(piece.to_bps)
        return f"{slow} – {fast}" if fast.endswith(f" {unit}") else f"{slow} {unit} – {fast}"
    if piece.from_bps > 0:
        return f"≥ {rate(piece.from_bps)}"
    return f"≤ {rate(piece.to_bps)}" if piece.to_bps < math.inf else "everywhere"


def _in_words(piece: Piece[Option]) -> str:
    if piece.from_bps > 0 and piece.to_bps < math.inf:
        return f"from {rate(piece.from_bps)} to {rate(piece.to_bps)}"
    if piece.from_bps > 0:
        return f"above {rate(piece.from_bps)}"
    return f"below {rate(piece.to_bps)}" if piece.to_bps < math.inf else "at any bandwidth"


def amount(value: float, objective: Objective) -> str:
    """A value of the objective with its unit."""
    if objective.name == "latency":
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{value:.3g} {objective.unit}".rstrip()


def _advice(outcome: AdviceOutcome) -> AdviceFacts:
    advice, objective = outcome.advice, outcome.objective
    verdict, *others = sentences(outcome)
    return AdviceFacts(
        objective=objective.name,
        unit=objective.unit,
        uplink_bps=1 / advice.inverse,
        downlink_bps=None if outcome.symmetric else outcome.graph.links[0].return_bps,
        rtt_s=outcome.graph.links[0].fixed_s,
        options=tuple(_option(advice, option) for option in advice.options),
        best=advice.best.name,
        cuts_pay=advice.cuts_pay,
        gain=advice.gain,
        verdict=verdict,
        notes=(*others, *notes(outcome)),
    )


def _option(advice: Advice, option: Option) -> OptionFacts:
    where = advice.range_of(option)
    return OptionFacts(
        name=option.name,
        kind=option.kind,
        placement=dict(option.placement),
        measured=option.is_measured,
        edge_s=option.edge_s,
        cloud_s=option.cloud_s,
        base_s=option.seconds.base,
        bytes=option.bytes,
        total_s=option.seconds.at(advice.inverse),
        value=option.value.at(advice.inverse),
        wins=None if where is None else RangeFacts(from_bps=where.from_bps or None, to_bps=_bound(where.to_bps)),
    )


def _piece(outcome: AdviceOutcome, piece: Piece[LabelledCost]) -> PieceFacts:
    """A piece in seconds, whatever the objective by which it was found."""
    placement = piece.line.of.placement
    line = BandwidthSweep(outcome.graph, latency(outcome.graph.tiers), symmetric=outcome.symmetric).line(
        placement, outcome.advice.inverse
    )
    return PieceFacts(
        name=cut_name(outcome.graph, placement),
        placement=dict(placement),
        edge_s=tier_s(outcome.graph, placement, EDGE),
        cloud_s=tier_s(outcome.graph, placement, CLOUD),
        base_s=line.base,
        bytes=line.slope / 8,
        from_bps=piece.from_bps or None,
        to_bps=_bound(piece.to_bps),
    )


def _bound(bps: float) -> float | None:
    return bps if bps < math.inf else None


def advise_on(options: AdviseOptions) -> None:
    """Plan, compare, print; draw if requested. Raises `ConfigError`, and `NoPlan` if nothing can run."""
    check_together(options)
    check_plot(options.plot)
    outcome, factory = _found(options)
    if options.plot is not None:
        _draw(options, outcome, factory)
    if options.as_json:
        typer.echo(json.dumps(advice_document(outcome).model_dump(mode="json", by_alias=True), allow_nan=False))
    else:
        _show(stdout_console(), outcome)
        if options.plot is not None:
            typer.echo(f"wrote {options.plot}")


def _found(options: AdviseOptions) -> tuple[AdviceOutcome, OptionFactory]:
    inverse = inverse_of(options)
    link, symmetric = link_of(options, inverse)
    objective = objective_of(options)
    edge, cloud = load_profile(options.edge), load_profile(options.cloud)
    graph = combine(edge, cloud, link)
    sweep = BandwidthSweep(graph, objective, symmetric=symmetric)
    from upwell.shared.partition.planner import Cutter  # needs scipy, which an invalid file should not require

    cutter = Cutter(sweep.weighed)
    pieces = envelope(sweep, lambda at: cutter.solve(at.links))
    factory = OptionFactory(sweep, inverse, measured_cuts(edge, cloud))
    encoded: list[Encoded] = []
    if options.picture is not None:
        size = picture_size_of(options)
        encoded += measure_picture(options.picture, edge, size, options.quality or QUALITY, options.stretch)
    advice = advise(factory, pieces, _best_cut(sweep.at(inverse)), encoded)
    plan = factory.option(cutter.solve(sweep.at(inverse).links))
    picture = "" if options.picture is None else options.picture.name
    return AdviceOutcome(
        edge, cloud, graph, objective, symmetric, pieces, plan, advice, picture, options.stretch
    ), factory


def _best_cut(graph: CostGraph) -> Placement | None:
    """The best placement with nodes on both sides; None if there is none."""
    from upwell.shared.partition.planner import Cutter, NoPlan

    try:
        return Cutter(replace(graph, non_empty=(EDGE, CLOUD))).solve()
    except NoPlan:
        return None


def _draw(options: AdviseOptions, outcome: AdviceOutcome, factory: OptionFactory) -> None:
    from upwell.tools.partition.advice_plot import draw

    if options.plot is None:
        return
    named = {option.name for option in outcome.advice.options}
    measured = [option for option in factory.measured_cuts() if option.name not in named]
    simulated = " (simulated device)" if outcome.edge.machine.simulated else ""
    title = f"{outcome.edge.model.name}: {outcome.edge.machine.name}{simulated} and {outcome.cloud.machine.name}"
    data = draw(outcome.advice, measured, outcome.objective, title, options.plot.suffix)
    write_named(options.plot, data, "--plot")


def _show(console: Console, outcome: AdviceOutcome) -> None:
    edge, cloud, advice = outcome.edge, outcome.cloud, outcome.advice
    console.print(Text(f"{edge.model.name}: {edge.machine.name} and {cloud.machine.name}"))
    link = f"uplink {rate(1 / advice.inverse)}, round trip {outcome.graph.links[0].fixed_s * 1e3:g} ms"
    console.print(Text(f"{link}, minimizing {outcome.objective.name}"))
    console.print()
    console.print(_table(advice, outcome.objective))
    console.print()
    for sentence in (*sentences(outcome), *notes(outcome)):
        console.print(Text(sentence))


def _table(advice: Advice, objective: Objective) -> Table:
    titles = ["sends kB", "edge ms", "cloud ms", "total ms", *([] if objective.name == "latency" else [objective.name])]
    columns = [Column(title, justify="right", no_wrap=True) for title in titles]
    table = Table(Column("", no_wrap=True), *columns, Column("best"), box=None, pad_edge=False)
    for option in advice.options:
        table.add_row(*_row(advice, option, objective))
    return table


def _row(advice: Advice, option: Option, objective: Objective) -> list[str]:
    where = advice.range_of(option)
    value = [] if objective.name == "latency" else [amount(option.value.at(advice.inverse), objective)]
    total_s = option.seconds.at(advice.inverse)
    return [
        option.name if option.is_measured else f"{option.name} (interpolated)",
        *(_thousand(number) for number in (option.bytes / 1e6, option.edge_s, option.cloud_s, total_s)),
        *value,
        "nowhere" if where is None else between(where),
    ]


def _thousand(number: float) -> str:
    return f"{number * 1e3:.1f}" if number else "–"
