"""`upwell partition split`: writes the two parts of a model as files, for the cuts of a plan, with a codec if asked.

With a codec the range of each cut tensor is found on samples, and the error of the codec is measured on them.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Column, Table
from rich.text import Text

from upwell.shared.config.located_errors import invalid_as
from upwell.shared.errors import ConfigError, InvalidRequest
from upwell.shared.files import read_file
from upwell.shared.partition.graph_contraction import contract
from upwell.shared.partition.plan_file import PlanFacts
from upwell.shared.partition.read_graph import read_graph
from upwell.shared.partition.split.cut_choice import ChosenCut, all_of_plan, best_of_plan, cut_at
from upwell.shared.partition.split.model_halves import Halves, ModelHalf
from upwell.shared.partition.split.split_file import WHOLE, CutFacts
from upwell.shared.partition.split.split_model import UnsplitModel
from upwell.shared.partition.split.split_writer import TAILS, Written, check_free, write_split
from upwell.shared.partition.torch_graph import TorchModelFile
from upwell.shared.signature.processor import Processor, chunk_of
from upwell.shared.tensors import Array
from upwell.tools.partition.halves_check import difference
from upwell.tools.partition.part_bench import Runner, TierOptions, open_tier
from upwell.tools.partition.tiers import for_device
from upwell.tools.request_inputs import read_given
from upwell.tools.terminal import AsJson, finite, progress, stdout_console

Codec = Callable[[Halves, Mapping[str, tuple[float, float]]], Halves]


class Coder:
    """Adds a codec to the parts of one model. `samples` are arrays by name, rows first; empty for none.

    Their names are those of the model's inputs, or of the signature in its `model.yaml`. Use it as a context manager:
    the model stays open in the device's runtime.
    """

    def __init__(self, whole: UnsplitModel, codec: Codec, samples: Mapping[str, Array]) -> None:
        self._codec = codec
        self._stack = contextlib.ExitStack()
        self._feeds: list[Mapping[str, Array]] = []
        self._answers: list[Mapping[str, Array]] = []
        if not samples:
            return
        self._tier, _ = open_tier("edge", whole.format, TierOptions())
        runner = self._stack.enter_context(contextlib.closing(self._tier.open(whole.file.path)))
        self._feeds = list(_feeds(whole, runner, samples))
        self._answers = [runner.run(feed) for feed in self._feeds]

    def __enter__(self) -> Coder:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def coded(self, halves: Halves) -> tuple[Halves, float | None]:
        """The parts with the codec, and their largest `OutputDifference.error` on the samples, None without any.

        Raises `ConfigError` if the codec does not fit.
        """
        if not self._feeds:
            return self._codec(halves, {}), None
        with self._opened(halves.head) as head:
            seen = [_of(head, feed) for feed in self._feeds]
        ranges = {name: _range([one[name] for one in seen]) for name in halves.cut}
        made = self._codec(halves, ranges)
        with self._opened(made.head) as head, self._opened(made.tail) as tail:
            recomposed = [_recomposed(head, tail, feed) for feed in self._feeds]
        return made, max(
            difference(name, [one[name] for one in recomposed], [one[name] for one in self._answers]).error
            for name in self._answers[0]
        )

    @contextlib.contextmanager
    def _opened(self, half: ModelHalf) -> Iterator[Runner]:
        with (
            tempfile.TemporaryDirectory(prefix="upwell-split-") as folder,
            contextlib.closing(self._tier.open(half.write(Path(folder)))) as runner,
        ):
            yield runner


def _range(arrays: Sequence[Array]) -> tuple[float, float]:
    """The least and the largest number; NaN if one of them is."""
    return float(np.min([float(one.min()) for one in arrays])), float(np.max([float(one.max()) for one in arrays]))


def _of(runner: Runner, values: Mapping[str, Array]) -> dict[str, Array]:
    return runner.run({spec.name: values[spec.name] for spec in runner.inputs})


def _recomposed(head: Runner, tail: Runner, feed: Mapping[str, Array]) -> dict[str, Array]:
    middle = _of(head, feed)
    return {**middle, **_of(tail, {**feed, **middle})}


def _feeds(whole: UnsplitModel, runner: Runner, samples: Mapping[str, Array]) -> Iterator[Mapping[str, Array]]:
    """The samples in batches as the model takes them; missing rows repeat the last one."""
    described = whole.description if set(samples) != {spec.name for spec in runner.inputs} else None
    processor = Processor(described, runner.inputs, runner.outputs, whole.format)
    signature = processor.signature
    if set(samples) != {one.name for one in signature.inputs}:
        wanted = ", ".join(repr(one.name) for one in signature.inputs)
        raise ConfigError.at(None, f"it has {', '.join(map(repr, samples))}; the model takes {wanted}", "--data")
    rows = min(len(array) if array.ndim else 0 for array in samples.values()) if signature.has_rows else 1
    step = max(chunk_of(runner.inputs), 1) if signature.has_rows else 1
    for start in range(0, rows, step):
        chosen = [min(row, rows - 1) for row in range(start, start + step)]
        try:
            yield processor.pre(signature.select_rows(samples, chosen)).tensors
        except InvalidRequest as error:
            raise ConfigError.at(None, f"row {start}: {error}", "--data") from None


_MOST_PLAN_BYTES = 64 << 20
_PLAN = "The output of `upwell partition plan --json` for this model."
_OUT = "The folder to write; an earlier one of this command is replaced."
_NAME = "Base name of the tails. Default: the file's name."
_ALL = "Every cut of the plan's envelope, for an agent that follows the link."
_CUT = "Without a plan: after the first N nodes, or after this node, in the order of the graph."
_HEADS = "The format of the heads of a .pt2."
_CODEC = "The codec for float tensors at the cut (ONNX)."
_DATA = "For --codec: an .npz with arrays named as the model's inputs, rows first; ranges and error come from it."


def split(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An ONNX or TFLite file, or a .pt2 of torch.export.", exists=True, dir_okay=False
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help=_OUT)],
    plan: Annotated[Path | None, typer.Option(metavar="FILE", help=_PLAN)] = None,
    cut: Annotated[str | None, typer.Option(metavar="N|NODE", help=_CUT)] = None,
    every: Annotated[bool, typer.Option("--all", help=_ALL)] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help=_NAME)] = None,
    heads: Annotated[Literal["onnx", "tflite"], typer.Option(help=_HEADS)] = "onnx",
    codec: Annotated[Literal["none", "fp16", "int8"], typer.Option(help=_CODEC)] = "none",
    data: Annotated[Path | None, typer.Option(metavar="FILE", help=_DATA)] = None,
    as_json: AsJson = False,
) -> None:
    """Split MODEL into heads for the device and tails for the cloud, following a plan.

    All are models of MODEL's format, but heads of a .pt2 become ONNX or TFLite. Its tails are for `--engine torch`, and
    contain no pickle and no code.

    `upwell serve --models DIR/tails` serves the tails at once. `upwell partition verify DIR` checks the parts.
    """
    if (plan is None) == (cut is None) or (every and plan is None):
        raise typer.BadParameter("say where to cut: --plan FILE, optionally with --all, or --cut N")
    if data is not None and codec == "none":
        raise typer.BadParameter("--data needs --codec")
    check_free(out)
    graph = contract(read_graph(model))
    whole = UnsplitModel.open(model, graph, name or model.stem, heads)
    chosen, planned = ([cut_at(cut or "", graph)], None) if plan is None else _of_plan(plan, whole, every)
    errors: dict[str, float | None] = {}
    with ExitStack() as stack:
        coder = None if codec == "none" else stack.enter_context(_coder(whole, codec, data))
        bar = stack.enter_context(progress(MofNCompleteColumn()))
        cuts = bar.track(chosen, description="splitting")
        sizes = {} if planned is None else planned.sizes
        written = write_split(out, whole, _made(whole, cuts, coder, errors), _whole_of(whole), sizes)
    remarks = [*_remarks(whole, out, planned if codec == "none" else None), *written.remarks]
    if as_json:
        typer.echo(json.dumps(_document(out, written, errors, remarks), allow_nan=False))
    else:
        _show(stdout_console(), out, written, errors, remarks)


def _of_plan(path: Path, whole: UnsplitModel, every: bool) -> tuple[Sequence[ChosenCut], PlanFacts]:
    with invalid_as(path, "not a plan of `upwell partition plan --json`"):
        plan = PlanFacts.model_validate_json(read_file(path, "the plan", _MOST_PLAN_BYTES))
    if plan.model is not None and plan.model.removeprefix("sha256:") != whole.file.digest:
        raise ConfigError.at(path, f"the plan is for another model file than {whole.file.path}: the digests differ")
    return (all_of_plan(plan, whole.graph, path) if every else [best_of_plan(plan, whole.graph, path)]), plan


def _coder(whole: UnsplitModel, codec: Literal["fp16", "int8"], data: Path | None) -> Coder:
    if whole.graph.format != "onnx":
        raise ConfigError.at(
            whole.file.path,
            "codecs apply only to ONNX models; quantized TFLite tensors are sent as they are",
            "--codec",
        )
    if codec == "int8" and data is None:
        raise ConfigError.at(None, "int8 needs --data, samples that show the range of each tensor", "--codec")
    from upwell.shared.partition.split.onnx_halves import with_codec

    samples = {} if data is None else read_given(data, "--data")
    return Coder(whole, lambda halves, ranges: with_codec(halves, codec, ranges), samples)


def _made(
    whole: UnsplitModel, chosen: Iterable[ChosenCut], coder: Coder | None, errors: dict[str, float | None]
) -> Iterator[tuple[ChosenCut, Halves]]:
    """The parts of each cut, one after the other; the codec's errors are added to `errors`."""
    for one in chosen:
        halves = whole.divide(one.edge)
        if coder is not None:
            halves, errors[one.name] = coder.coded(halves)
        if whole.graph.format == "torch":
            halves = replace(halves, head=for_device(halves.head, whole.format))
        yield one, halves


def _whole_of(whole: UnsplitModel) -> ModelHalf | None:
    """A program of torch.export as the device runs it; None for what the device runs unchanged."""
    if not isinstance(whole.file, TorchModelFile):
        return None
    return for_device(whole.file.whole(whole.graph), whole.format)


def _remarks(whole: UnsplitModel, out: Path, plan: PlanFacts | None) -> list[str]:
    """Notes on these parts for the user; `plan` is one whose codecs they lack."""
    remarks = []
    codecs = sorted({one.codec for one in plan.sent if one.codec}) if plan is not None else ()
    if codecs:
        remarks.append(
            f"the plan assumes tensors sent as {', '.join(codecs)}; these halves send them as they are (see --codec)"
        )
    if whole.graph.format == "torch":
        remarks.append(
            f"`upwell serve --models {out / TAILS} --engine torch` serves the tails; "
            f"{out / WHOLE}.{whole.format} is the whole for the device"
        )
    elif whole.format == "tflite":
        remarks.append(
            "`upwell serve` has no engine for TFLite: an Upwell agent on a gateway serves these tails "
            f"(edge: {{file: {out / TAILS}/NAME/1/model.tflite}} under the tail's NAME)"
        )
    return remarks


def _document(out: Path, written: Written, errors: dict[str, float | None], remarks: Sequence[str]) -> dict[str, Any]:
    cuts = []
    for cut in written.facts.cuts:
        sizes = written.sizes[cut.name]
        about = {"head_bytes": sizes.head, "tail_bytes": sizes.tail, "sent_bytes": _sent_bytes(cut)}
        cuts.append({**cut.model_dump(mode="json"), **about, "codec_error": finite(errors.get(cut.name))})
    return {"out": str(out), **written.facts.model_dump(mode="json"), "cuts": cuts, "remarks": list(remarks)}


def _sent_bytes(cut: CutFacts) -> int:
    return sum(tensor.bytes for tensor in cut.tensors)


def _show(
    console: Console, out: Path, written: Written, errors: dict[str, float | None], remarks: Sequence[str]
) -> None:
    columns = ("cut", "head", "tail", "sent for one row", Column("tensors", overflow="fold"))
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for cut in written.facts.cuts:
        tensors = [f"{one.name} {one.datatype} {list(one.shape)}" for one in cut.tensors]
        tensors += [f"{name} as the caller gives it" for name in cut.raw_inputs]
        sizes = written.sizes[cut.name]
        sent = _amount(_sent_bytes(cut))
        table.add_row(cut.name, _amount(sizes.head), _amount(sizes.tail), sent, Text("\n".join(tensors)))
    console.print(table)
    console.print(f"wrote {out}; the tails are", markup=False)
    for cut in written.facts.cuts:
        error = errors.get(cut.name)
        lost = "" if error is None else f": relative error {error:.2e} on the samples"
        console.print(f"  {cut.tail}{lost}", markup=False)
    for remark in remarks:
        console.print(remark, markup=False)


def _amount(size_bytes: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} B"
