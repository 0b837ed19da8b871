"""Which output of a head goes into which input of a tail, when nothing tells but their names and shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upwell.edge.runtimes.inputs import describe
from upwell.shared.signature.binding import sizes_fit
from upwell.shared.tensors import TensorSpec


class Unfit(Exception):
    """Models that do not fit together, or in more than one way. The text is a sentence for a person."""


@dataclass(frozen=True)
class Joint:
    """How a head and a tail fit together.

    `sent` leads from each input of the tail that the head makes to the head's output; `raw` are the other inputs of the
    tail, which take what the caller gave; `early` are outputs of the head that no input takes. `by_order` says that
    names alone did not tell.
    """

    sent: Mapping[str, str]
    raw: tuple[str, ...]
    early: tuple[str, ...]
    by_order: bool = False


def join(head: Sequence[TensorSpec], tail: Sequence[TensorSpec], given: Sequence[TensorSpec]) -> Joint:
    """Match the outputs of a head with the inputs of a tail; `given` are the inputs that a caller has.

    By name where names are the same. An input that no output is called like is one of `given`, if one of that name
    fits, and else an output that fits, in order. Raises `Unfit`, also where all inputs left may be either.
    """
    outputs = {spec.name: spec for spec in head}
    named = [spec for spec in tail if spec.name in outputs]
    for spec in named:
        if not fits(outputs[spec.name], spec):
            raise Unfit(f"the head gives {describe(outputs[spec.name])}, the tail takes {describe(spec)}")
    rest = [spec for spec in tail if spec not in named]
    unused = [spec for spec in head if spec.name not in {one.name for one in named}]
    raw = [spec for spec in rest if any(spec.name == one.name and fits(one, spec) for one in given)]
    if rest and not named and raw == rest and any(fits(one, spec) for spec in rest for one in unused):
        names = ", ".join(map(describe, rest))
        raise Unfit(f"{names} of the tail may be an input of the model or an output of the head; name it as what it is")
    ordered = pair([spec for spec in rest if spec not in raw], unused, "the head gives", "the tail takes")
    sent = {spec.name: ordered.get(spec.name, spec.name) for spec in tail if spec not in raw}
    taken = set(sent.values())
    early = tuple(spec.name for spec in head if spec.name not in taken)
    return Joint(sent, tuple(spec.name for spec in raw), early, bool(ordered))


def pair(wanted: Sequence[TensorSpec], there: Sequence[TensorSpec], gives: str, takes: str) -> dict[str, str]:
    """For each of `wanted` the one of `there` that it is: in their order, by datatype and shape.

    `gives` and `takes` begin sentences about them. Raises `Unfit` unless there is exactly one way.
    """
    ways = [1] + [0] * len(wanted)  # of finding the first so many of `wanted` in what was seen of `there`
    for one in there:
        for count in reversed(range(len(wanted))):
            ways[count + 1] += ways[count] if fits(one, wanted[count]) else 0
    if ways[-1] != 1:
        problem = "more than one way fits; give them the same names" if ways[-1] else "they do not fit together"
        given, taken = (", ".join(map(describe, side)) or "nothing else" for side in (there, wanted))
        raise Unfit(f"{gives} {given}; {takes} {taken}: {problem}")
    found: dict[str, str] = {}
    left = list(wanted)
    for one in there:
        if left and fits(one, left[0]):
            found[left.pop(0).name] = one.name
    return found


def fits(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether the two can be one tensor."""
    return one.datatype == other.datatype and sizes_fit(one.shape, other.shape)
