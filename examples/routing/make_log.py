"""Write a request log to simulate a policy on: synthetic, but with the properties that limit what routing can
achieve.

    python make_log.py --out log.jsonl --seconds 1000 --seed 1

Ten classes. Each case has a clarity c ~ N(0, 1) that both models see. A model's logits are independent noise N(0, 1),
and the true class's gets a signal on top: SIGNAL + SPREAD·c + N(0, 0.8); all are scaled by a gain that differs from
case to case, like uncalibrated confidence. So both models fail on the same kind of case, the larger one less often
(the edge is right in about 85 %, the cloud in about 97 %), and a low margin is frequent, but not certain, where the
edge is wrong. Sizes are log-uniform from 20 to 200 kB, like photos, and independent of hardness; arrivals are a
camera's, five a second, each up to 20 ms late.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CLASSES = 10
EDGE_SIGNAL, CLOUD_SIGNAL, SPREAD = 3.6, 5.2, 1.4
GAIN, GAIN_SPREAD = 1.2, 0.6
LEAST_BYTES, MOST_BYTES = 20_000, 200_000


def logits(random_: random.Random, signal: float, clarity: float) -> list[float]:
    """Logits of one case whose true class is the first."""
    values = [random_.gauss(0, 1) for _ in range(CLASSES)]
    values[0] += signal + SPREAD * clarity + random_.gauss(0, 0.8)
    gain = GAIN * random_.lognormvariate(0, GAIN_SPREAD)
    return [gain * value for value in values]


def hardness(values: Sequence[float]) -> dict[str, float]:
    """The measures of one case, by its softmax."""
    exponentials = [math.exp(value - max(values)) for value in values]
    shares = sorted((e / sum(exponentials) for e in exponentials), reverse=True)
    entropy = -sum(share * math.log(share) for share in shares if share > 0) / math.log(len(shares))
    return {"margin": shares[0] - shares[1], "max_prob": shares[0], "entropy": entropy}


def requests(seconds: float, per_s: float, seed: int) -> Iterator[dict[str, Any]]:
    """The lines of a log, in order."""
    random_ = random.Random(seed)  # noqa: S311  not for secrets
    for index in range(round(seconds * per_s)):
        clarity = random_.gauss(0, 1)
        edge, cloud = (logits(random_, signal, clarity) for signal in (EDGE_SIGNAL, CLOUD_SIGNAL))
        yield {
            "t_s": round(index / per_s + random_.uniform(0, 0.02), 4),
            "model": "photos",
            "size_bytes": round(LEAST_BYTES * (MOST_BYTES / LEAST_BYTES) ** random_.random()),
            "reply_bytes": 200,
            "edge_s": round(0.012 * random_.lognormvariate(0, 0.15), 5),
            "cloud_s": round(0.008 * random_.lognormvariate(0, 0.4), 5),
            "hardness": {name: round(value, 6) for name, value in hardness(edge).items()},
            "logits": [round(value, 4) for value in edge],
            "edge_correct": max(edge) == edge[0],
            "cloud_correct": max(cloud) == cloud[0],
        }


def main() -> None:
    """Write the log."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("log.jsonl"))
    parser.add_argument("--seconds", type=float, default=1000)
    parser.add_argument("--per-second", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    lines = [json.dumps(line) for line in requests(asked.seconds, asked.per_second, asked.seed)]
    asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
