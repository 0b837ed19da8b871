"""A model's rows when its bundle was made: histograms, and mean and covariance of its embedding."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from upwell.shared.errors import ConfigError
from upwell.shared.routing.hardness import Measure

Floats: TypeAlias = npt.NDArray[np.float64]
Quantity: TypeAlias = Literal["hardness", "classes", "brightness", "sharpness", "frozen", "embedding", "audits"]
"""The quantities counted for each row. `frozen`: whether the picture equals the previous one; `embedding`: the distance
of its vector from the reference's mean; `audits`: whether the cloud disagreed."""

FEWEST_ROWS = 150
BINS = 10
MOST_LABELS = 30
MOST_COVARIANCE = 64
"""Maximum length of a vector with covariances; longer ones have only variances."""
OTHER = "(other)"
FROZEN, MOVING = "frozen", "moving"

_MOST_VECTOR = 8192
_SHRINKAGE = 0.1
_FIT_SHARE = 1 / 3
_Count = Annotated[int, Field(ge=0, le=2**40)]


@dataclass(frozen=True, slots=True)
class RowMeasures:
    """The measurements of one row for drift; NaN, None or empty if unknown."""

    hardness: float = math.nan
    label: str = ""
    brightness: float = math.nan
    sharpness: float = math.nan
    is_frozen: bool | None = None
    vector: Floats | None = None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), defer_build=True)


class ReferenceHistogram(_Part):
    """Counts of an ordered quantity by `edges`, bin i being (edgesᵢ₋₁, edgesᵢ], or of a named one by `labels`."""

    edges: Annotated[tuple[FiniteFloat, ...], Field(max_length=BINS)] = ()
    labels: Annotated[tuple[str, ...], Field(max_length=MOST_LABELS + 1)] = ()
    counts: Annotated[tuple[_Count, ...], Field(max_length=MOST_LABELS + 1)]

    @model_validator(mode="after")
    def _fits(self) -> ReferenceHistogram:
        wanted = len(self.labels) or len(self.edges) + 1
        if bool(self.labels) == bool(self.edges) or len(self.counts) != wanted or not sum(self.counts):
            raise ValueError("expected either edges and one more count, or labels and as many counts, not all 0")
        if any(b <= a for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("expected edges in ascending order")
        return self

    def bin_of(self, value: float | str) -> int | None:
        """The bin of a value; the bin of `OTHER` for a label without one, None for what cannot be counted."""
        if isinstance(value, str):
            if value in self.labels:
                return self.labels.index(value)
            return self.labels.index(OTHER) if value and OTHER in self.labels else None
        return int(np.searchsorted(self.edges, value, side="left")) if math.isfinite(value) else None

    def name_of(self, bin: int) -> str:
        """The name of a bin."""
        if self.labels:
            return self.labels[bin]
        low, high = self.edges[bin - 1] if bin else -math.inf, self.edges[bin] if bin < len(self.edges) else math.inf
        return f"≤ {high:.3g}" if not bin else f"> {low:.3g}" if math.isinf(high) else f"{low:.3g}–{high:.3g}"


class VectorModel(_Part):
    """Mean and covariance of a model's embedding (else its logits); only variances if it is long."""

    mean: Annotated[tuple[FiniteFloat, ...], Field(min_length=1, max_length=_MOST_VECTOR)]
    covariance: Annotated[tuple[tuple[FiniteFloat, ...], ...], Field(max_length=MOST_COVARIANCE)] = ()
    variance: Annotated[tuple[FiniteFloat, ...], Field(max_length=_MOST_VECTOR)] = ()

    @model_validator(mode="after")
    def _fits(self) -> VectorModel:
        size = len(self.mean)
        is_full = len(self.covariance) == size and all(len(row) == size for row in self.covariance)
        if not (is_full and not self.variance) and len(self.variance) != size:
            raise ValueError("expected a covariance, or a variance, of as many elements as the mean has")
        return self

    @classmethod
    def of(cls, vectors: Floats) -> VectorModel:
        """The model of `vectors` [n, d]."""
        mean = tuple(vectors.mean(axis=0).tolist())
        if vectors.shape[1] > MOST_COVARIANCE:
            return cls(mean=mean, variance=tuple(vectors.var(axis=0).tolist()))
        return cls(mean=mean, covariance=tuple(map(tuple, np.cov(vectors.T).reshape(len(mean), -1).tolist())))


class DistanceFrom:
    """The distance of a vector from a reference: √((x − μ)ᵀ S⁻¹ (x − μ) / d), Mahalanobis' distance (1936) per
    dimension.

    It is about 1 for a row like those of the reference. S is the covariance Σ shrunk towards its diagonal, 0.9 Σ + 0.1
    diag Σ, so that it can be inverted; the variation of an element is at least a thousandth of the largest one.
    """

    def __init__(self, vectors: VectorModel) -> None:
        self._mean = np.array(vectors.mean)
        covariance = np.array(vectors.covariance)
        variance = np.diag(covariance) if len(covariance) else np.array(vectors.variance)
        variance = np.maximum(variance, max(float(variance.max()) * 1e-6, 1e-24))
        self._inverse = 1.0 / variance
        if len(covariance):
            shrunk = (1 - _SHRINKAGE) * covariance
            np.fill_diagonal(shrunk, variance)
            self._inverse = np.linalg.pinv(shrunk, hermitian=True)

    def __call__(self, vector: Floats) -> float:
        """The distance; NaN for a vector of another length."""
        if vector.shape != self._mean.shape:
            return math.nan
        apart = vector - self._mean
        weighted = self._inverse @ apart if self._inverse.ndim == 2 else self._inverse * apart
        return math.sqrt(max(0.0, float(apart @ weighted)) / len(apart))


class DriftReference(_Part):
    """`reference.json` of a bundle. `measure` is the hardness measure; rows within `every_s` of each other count as
    one."""

    version: Literal[1] = 1
    edge_digest: str = ""
    measure: Measure = "margin"
    every_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 0.0
    quantities: Mapping[Quantity, ReferenceHistogram]
    vectors: VectorModel | None = None

    @classmethod
    def read(cls, text: str | bytes) -> DriftReference:
        """Parse a reference. Raises `ValueError` with what is wrong."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None

    def text(self) -> str:
        """The reference as the text of a file."""
        return self.model_dump_json(exclude_defaults=True, indent=1) + "\n"


def reference_of(
    rows: Sequence[RowMeasures], *, edge_digest: str, measure: Measure, every_s: float, seed: int = 0
) -> DriftReference:
    """The reference of these rows, at least `FEWEST_ROWS` (raises `ConfigError`).

    A third of the rows, chosen by `seed`, defines the bins, the mean and the covariance; the others are counted. So the
    counts are binomial given the first third, and their bounds are exact.
    """
    if len(rows) < FEWEST_ROWS:
        raise ConfigError.at(None, f"expected at least {FEWEST_ROWS} rows for a reference, got {len(rows)}")
    from numpy.random import default_rng  # an agent reads references and makes none

    order = default_rng(seed).permutation(len(rows)).tolist()
    fitted = int(len(rows) * _FIT_SHARE)
    fit, counted = [rows[i] for i in order[:fitted]], [rows[i] for i in order[fitted:]]
    vectors = _vectors(fit)
    distance = None if vectors is None else DistanceFrom(vectors)
    found: dict[Quantity, ReferenceHistogram | None] = {
        "hardness": _ordered([row.hardness for row in fit], [row.hardness for row in counted]),
        "classes": _named([row.label for row in fit], [row.label for row in counted]),
        "brightness": _ordered([row.brightness for row in fit], [row.brightness for row in counted]),
        "sharpness": _ordered([row.sharpness for row in fit], [row.sharpness for row in counted]),
        "embedding": _ordered(_distances(distance, fit), _distances(distance, counted)),
    }
    pictures = sum(math.isfinite(row.brightness) for row in counted)
    if pictures:  # pictures of a data set are never frozen
        found["frozen"] = ReferenceHistogram(labels=(MOVING, FROZEN), counts=(pictures, 0))
    quantities = {name: one for name, one in found.items() if one is not None}
    if not quantities:
        raise ConfigError.at(None, "the model has no output for detecting drift: no scores, boxes or embedding")
    return DriftReference(
        edge_digest=edge_digest, measure=measure, every_s=every_s, quantities=quantities, vectors=vectors
    )


def _vectors(rows: Sequence[RowMeasures]) -> VectorModel | None:
    found = [row.vector for row in rows if row.vector is not None]
    if len(found) < len(rows) or len({one.shape for one in found}) != 1 or found[0].size > _MOST_VECTOR:
        return None
    return VectorModel.of(np.stack(found))


def _distances(distance: DistanceFrom | None, rows: Sequence[RowMeasures]) -> list[float]:
    return [] if distance is None else [distance(row.vector) for row in rows if row.vector is not None]


def _ordered(fit: Sequence[float], counted: Sequence[float]) -> ReferenceHistogram | None:
    known, values = np.array([v for v in fit if math.isfinite(v)]), [v for v in counted if math.isfinite(v)]
    if len(known) < len(fit) / 2 or not len(known) or not values:
        return None
    edges = np.unique(np.quantile(known, np.arange(1, BINS) / BINS))
    counts = np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1)
    return ReferenceHistogram(edges=tuple(edges.tolist()), counts=tuple(counts.tolist()))


def _named(fit: Sequence[str], counted: Sequence[str]) -> ReferenceHistogram | None:
    common = Counter(label for label in fit if label).most_common(MOST_LABELS)
    values = [label for label in counted if label]
    if not common or not values:
        return None
    labels = (*sorted(label for label, _ in common), OTHER)
    counts = Counter(label if label in labels else OTHER for label in values)
    return ReferenceHistogram(labels=labels, counts=tuple(counts[label] for label in labels))
