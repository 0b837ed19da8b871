"""`upwell partition verify`: whether two parts fit together and give the same outputs as the whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.partition.split.split_file import FILE_NAME
from upwell.shared.partition.split.split_writer import half_paths, read_split
from upwell.tools.partition.halves_check import Inputs, Unfit, Verification
from upwell.tools.partition.halves_check import verify as verified
from upwell.tools.request_inputs import read_given
from upwell.tools.terminal import AsJson, finite, quiet, stdout_console

EXIT_FAILED = 1
_HEAD = "The head, or a folder that `upwell partition split` wrote."
_WHOLE = "The model that was split; without it, only checks that the halves match and run."
_INPUTS = "An .npz with arrays named as the model's inputs; rows of a model that takes one run one by one."
_AT_MOST = "The largest relative error of an output: max |halves - whole| / max |whole|."


@dataclass(frozen=True)
class _Pair:
    """Two parts, and the verification or the problem with them. `cut` is empty outside of a folder."""

    head: Path
    tail: Path
    cut: str = ""
    found: Verification | None = None
    problem: str = ""

    def holds(self, at_most: float) -> bool:
        return self.found is not None and self.found.holds(at_most)


def verify(
    head: Annotated[Path, typer.Argument(metavar="HEAD", help=_HEAD, exists=True, show_default=False)],
    tail: Annotated[
        Path | None,
        typer.Argument(metavar="TAIL", help="The tail; not needed for a folder.", exists=True, dir_okay=False),
    ] = None,
    whole: Annotated[Path | None, typer.Option(metavar="MODEL", help=_WHOLE, exists=True, dir_okay=False)] = None,
    inputs: Annotated[Path | None, typer.Option(metavar="FILE", help=_INPUTS)] = None,
    runs: Annotated[int, typer.Option(min=1, max=100_000, help="Number of random inputs, without --inputs.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
    at_most: Annotated[float, typer.Option("--at-most", min=0, metavar="ERROR", help=_AT_MOST)] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Recompose HEAD and TAIL in the device's runtimes: do they fit, and give the same outputs as the whole?

    Parts made elsewhere are welcome: learned bottlenecks, early exits. Tensors are matched by name, or if names
    differ by order, datatype and shape.
    """
    pairs = _pairs(head, tail, whole)
    feeds = Inputs({} if inputs is None else read_given(inputs), runs, seed)
    with quiet():
        done = [_verified(pair, whole, feeds) for pair in pairs]
    holds = all(pair.holds(at_most) for pair in done)
    if as_json:
        document = {"holds": holds, "at_most": at_most, "halves": [_document(pair, at_most) for pair in done]}
        typer.echo(json.dumps(document, allow_nan=False))
    else:
        console = stdout_console()
        for pair in done:
            _show(console, pair, at_most)
    if not holds:
        raise typer.Exit(EXIT_FAILED)


def _pairs(head: Path, tail: Path | None, whole: Path | None) -> Sequence[_Pair]:
    if not head.is_dir():
        if tail is None:
            raise typer.BadParameter("TAIL is missing; only a folder written by `upwell partition split` needs none")
        return [_Pair(head, tail)]
    if tail is not None:
        raise typer.BadParameter(f"{head} is a folder with its tails; leave TAIL out")
    if not (head / FILE_NAME).exists():
        raise ConfigError.at(head, f"there is no {FILE_NAME} in it; expected a folder of `upwell partition split`")
    facts = read_split(head)
    if whole is not None and model_digest(whole).removeprefix("sha256:") not in (facts.whole, facts.program):
        raise ConfigError.at(whole, f"{head} was split from another model: their digests differ", "--whole")
    return [_Pair(*half_paths(head, facts, cut), cut.name) for cut in facts.cuts]


def _verified(pair: _Pair, whole: Path | None, inputs: Inputs) -> _Pair:
    """The verification of two parts. Raises `ConfigError` for files and inputs that cannot be used at all."""
    try:
        return replace(pair, found=verified(pair.head, pair.tail, whole, inputs))
    except ConfigError:
        raise
    except (Unfit, UpwellError) as error:
        return replace(pair, problem=str(error))


def _document(pair: _Pair, at_most: float) -> dict[str, Any]:
    ends = {"cut": pair.cut or None, "head": str(pair.head), "tail": str(pair.tail), "holds": pair.holds(at_most)}
    found = pair.found
    if found is None:
        return {**ends, "problem": pair.problem}
    return {
        **ends,
        "crossing": [asdict(one) for one in found.crossing],
        "raw_inputs": list(found.raw),
        "early_outputs": list(found.early),
        "matched_by": "order" if found.by_order else "name",
        "repeatable": found.is_repeatable,
        "outputs": [{"name": one.name, "equal": one.is_equal, "error": finite(one.error)} for one in found.outputs],
        "runs": found.runs,
        "seconds": {"head": found.head_s, "tail": found.tail_s, "whole": found.whole_s},
    }


def _show(console: Console, pair: _Pair, at_most: float) -> None:
    found = pair.found
    console.print(f"{f'cut {pair.cut}: ' if pair.cut else ''}{pair.head} + {pair.tail}", markup=False)
    if found is None:
        console.print(f"  failed: {pair.problem}", markup=False)
        return
    table = Table(Column("crosses", overflow="fold"), "datatype", "shape", "bytes", box=None, padding=(0, 2, 0, 0))
    for one in found.crossing:
        name = one.name if one.name == one.output else f"{one.output} as {one.name}"
        table.add_row(*map(Text, (name, one.datatype, str(list(one.shape)), str(one.size_bytes))))
    console.print(table)
    for line in _lines(found, at_most):
        console.print(f"  {line}", markup=False)


def _lines(found: Verification, at_most: float) -> Sequence[str]:
    times = f"head {found.head_s * 1e3:.2f} ms, tail {found.tail_s * 1e3:.2f} ms"
    times += "" if found.whole_s is None else f", whole {found.whole_s * 1e3:.2f} ms"
    lines = ["matched by order, datatype and shape: the names differ"] if found.by_order else []
    lines += [f"the tail also takes {name!r} as the caller gives it" for name in found.raw]
    lines += [f"{name!r} is an early answer: the tail does not take it" for name in found.early]
    for one in found.outputs:
        verdict = "holds" if one.holds(at_most) else f"DOES NOT HOLD, at most {at_most:g} is allowed"
        exactly = "bit-equal" if one.is_equal else f"relative error {one.error:.3g}"
        lines.append(f"{one.name!r} {exactly}: {verdict}")
    if not found.outputs:
        same = "repeat their results" if found.is_repeatable else "DO NOT repeat their results"
        lines.append(f"the halves match, run and {same}; measure their accuracy with --whole MODEL")
    return [*lines, f"{times}; medians of {found.runs} runs"]
