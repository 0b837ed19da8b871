"""Profiles by hand: a chain or a graph of named nodes, with the times of heads and tails that a test wants."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal

from upwell.shared.partition.cost_graph import TierLink
from upwell.shared.partition.tier_profile import (
    Machine,
    ModelFacts,
    NodeFacts,
    Point,
    Profile,
    RuntimeFacts,
    Spread,
    TensorFacts,
)

DIGEST = "1a2b3c4d" * 8
LINK = TierLink(bps=8e6, fixed_s=0.04, return_bps=8e6)


def profile(
    tier: Literal["edge", "cloud"],
    times_s: Mapping[int, float],
    sizes: Sequence[int | None],
    work: Sequence[float] = (),
    *,
    digest: str = DIGEST,
    rows: int = 1,
) -> Profile:
    """A chain `n0, n1, …` over tensors `x, t1, …, y` of `sizes` bytes; `times_s` by the number of nodes in the head."""
    count = len(sizes) - 1
    names = ["x", *(f"t{index}" for index in range(1, count)), "y"]
    nodes = tuple(
        NodeFacts(
            name=f"n{index}",
            op="Conv",
            inputs=(names[index],),
            outputs=(names[index + 1],),
            work=work[index] if work else 0.0,
        )
        for index in range(count)
    )
    tensors = {name: TensorFacts(datatype="FP32", bytes=size) for name, size in zip(names, sizes, strict=True)}
    return _profile(tier, times_s, nodes, tensors, ("x",), ("y",), digest, rows)


def _profile(
    tier: Literal["edge", "cloud"],
    times_s: Mapping[int, float],
    nodes: tuple[NodeFacts, ...],
    tensors: dict[str, TensorFacts],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    digest: str,
    rows: int,
) -> Profile:
    return Profile(
        tier=tier,
        model=ModelFacts(name="net", format="onnx", digest=digest, rows=rows),
        machine=Machine(name=f"{tier} board", system="Linux", processor="one"),
        runtime=RuntimeFacts(name="onnxruntime", version="1"),
        nodes=nodes,
        tensors=tensors,
        inputs=inputs,
        outputs=outputs,
        points=tuple(
            Point(
                nodes=count,
                tensors=(),
                measured=Spread(median_s=seconds, p10_s=seconds, p90_s=seconds, runs=3),
                corrected_s=seconds,
            )
            for count, seconds in times_s.items()
        ),
    )


def random_profiles(rng: random.Random, count: int) -> tuple[Profile, Profile]:
    """An edge and a cloud profile of one random graph with skips and several outputs, measured at some cuts each."""
    nodes: list[NodeFacts] = []
    made = ["x"]
    for index in range(count):
        read = tuple(dict.fromkeys([made[-1], *rng.sample(made, k=min(len(made), rng.randint(0, 2)))]))
        outputs = tuple(f"t{index}_{number}" for number in range(rng.choice((1, 1, 1, 2))))
        nodes.append(
            NodeFacts(name=f"n{index}", op="Op", inputs=read, outputs=outputs, work=rng.choice((0.0, 1.0, 7.0)))
        )
        made += outputs
    sizes = (rng.randint(0, 200_000 // (1 + index)) for index in range(len(made)))  # later ones are smaller
    tensors = {name: TensorFacts(datatype="UINT8", bytes=size) for name, size in zip(made, sizes, strict=True)}
    tensors[nodes[-1].outputs[0]] = TensorFacts(datatype="UINT8", bytes=rng.randint(1, 100))
    profiles = []
    for tier, slowness in (("edge", 0.05), ("cloud", 0.005)):
        cuts = sorted({0, count, *rng.sample(range(count + 1), k=rng.randint(0, count))})
        times = sorted(rng.random() * slowness * count for _ in cuts[1:])
        ordered = [0.0, *times] if tier == "edge" else [*times[::-1], 0.0]
        by_count = dict(zip(cuts, ordered, strict=True))
        last = (nodes[-1].outputs[0],)
        profiles.append(
            _profile("edge" if tier == "edge" else "cloud", by_count, tuple(nodes), tensors, ("x",), last, DIGEST, 1)
        )
    return profiles[0], profiles[1]
