"""One case: the inputs of a row, the answers of both sides, and why it was stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.codec.converters import (
    parse_infer_request,
    parse_infer_response,
    serialize_infer_request,
    serialize_infer_response,
)
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.routing.case_selection import Why
from upwell.shared.signature.answer_agreement import best_class, label_of
from upwell.shared.signature.signature import InputKind, OutputKind, Signature
from upwell.shared.tensors import Array
from upwell.shared.units import LATEST_UNIX_S

OVERHEAD_BYTES = 4096
"""Disk space of a case beyond its tensors and tags (bytes)."""


class _Facts(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class InputFacts(_Facts):
    """One input as callers see it."""

    name: str
    kind: InputKind


class OutputFacts(_Facts):
    """One output as callers see it, with the names of its classes."""

    name: str
    kind: OutputKind
    labels: tuple[str, ...] = ()


class CaseSignature(_Facts):
    """The model's inputs and outputs. With `has_rows`, every tensor of a case has one row."""

    has_rows: bool
    inputs: tuple[InputFacts, ...]
    outputs: tuple[OutputFacts, ...]

    @classmethod
    def of(cls, signature: Signature) -> CaseSignature:
        """Make it from a model's signature."""
        return cls(
            has_rows=signature.has_rows,
            inputs=tuple(InputFacts(name=one.name, kind=one.kind) for one in signature.inputs),
            outputs=tuple(OutputFacts(name=o.name, kind=o.kind, labels=o.labels) for o in signature.outputs),
        )

    @property
    def answer(self) -> OutputFacts | None:
        """The output used for labelling: the first with classes, else the first with boxes, else the first."""
        for kinds in (("probabilities", "logits"), ("detections",)):
            for output in self.outputs:
                if output.kind in kinds:
                    return output
        return self.outputs[0] if self.outputs else None


class HardFacts(_Facts):
    """How hardness was judged: the threshold at that time, and why no calibration applied (`misfit`)."""

    measure: str
    threshold: float | None = None
    temperature: float = 1.0
    bias: float = 0.0
    support: float = 0.0
    hidden_slope: float = 1.0
    cloud_share: float | None = None
    max_risk: float | None = None
    misfit: str = ""


class CaseFacts(_Facts):
    """The facts about a case beside its tensors. Times are Unix times; unknown values are None or empty.

    `inclusion` is the probability of its random choice for the evaluation set, 0 if it is not in it; `sample` is that
    of an offloaded row, which no audit can choose.
    """

    version: Literal[1] = 1
    id: str = Field(pattern="^[0-9a-f]{32}$")
    agent: str = ""
    model: str
    source: str = ""
    tags: Mapping[str, str] = {}
    request_id: str = ""
    row: int = 0
    created_unix_s: float = Field(ge=0, le=LATEST_UNIX_S)
    why: tuple[Why, ...]
    inclusion: float = Field(0.0, ge=0, le=1)
    sample: float = Field(0.0, ge=0, le=1)
    is_hard: bool = False
    hardness: float | None = None
    measures: Mapping[str, float] = {}
    novelty: float | None = None
    hard: HardFacts | None = None
    route: str = ""
    reason: str = ""
    edge_digest: str = ""
    edge_runtime: str = ""
    cloud_digest: str = ""
    signature: CaseSignature

    @property
    def is_evaluated(self) -> bool:
        """Whether it belongs to the evaluation set, which must not be trained on."""
        return self.inclusion > 0


@dataclass(frozen=True)
class CollectedCase:
    """A case with its tensors, one row each. `edge` and `cloud` are empty if that side gave no answer.

    Pictures are encoded: BYTES [1]. `request` is a serialized `InferRequest`, the answers are serialized responses.
    """

    facts: CaseFacts
    request: bytes
    edge: bytes = b""
    cloud: bytes = b""

    @property
    def size_bytes(self) -> int:
        """Its size on disk, where its tags and source are stored twice."""
        tags_bytes = 2 * len(json.dumps([dict(self.facts.tags), self.facts.source]))
        return len(self.request) + len(self.edge) + len(self.cloud) + tags_bytes + OVERHEAD_BYTES

    def inputs(self) -> Mapping[str, Array]:
        """The inputs. Raises `InvalidRequest` if the stored data cannot be read."""
        return parse_infer_request(self.request).inputs

    def pictures(self) -> dict[str, bytes]:
        """The encoded pictures among the inputs. Raises `InvalidRequest`."""
        inputs = self.inputs()
        found = {}
        for one in self.facts.signature.inputs:
            array = inputs.get(one.name)
            if one.kind == "image" and array is not None and array.dtype.hasobject and array.size:
                found[one.name] = bytes(array.flat[0])
        return found

    def text(self) -> str | None:
        """The first text or record among the inputs; None without one. Raises `InvalidRequest`."""
        inputs = self.inputs()
        for one in self.facts.signature.inputs:
            array = inputs.get(one.name)
            if one.kind in ("text", "record") and array is not None and array.dtype.hasobject and array.size:
                return bytes(array.flat[0]).decode("utf-8", "replace")
        return None

    def edge_outputs(self) -> Mapping[str, Array]:
        """The device's outputs. Raises `InvalidRequest`."""
        return outputs_of(self.edge)

    def cloud_outputs(self) -> Mapping[str, Array]:
        """The cloud's outputs. Raises `InvalidRequest`."""
        return outputs_of(self.cloud)


def request_bytes(model: str, inputs: Mapping[str, Array]) -> bytes:
    """The inputs in stored form. Raises `InvalidRequest` if no message can carry them."""
    return serialize_infer_request(InferRequest(model, inputs))


def answer_bytes(model: str, outputs: Mapping[str, Array]) -> bytes:
    """One row of an answer in stored form. Raises `InvalidRequest`."""
    return serialize_infer_response(InferResponse(model, outputs)) if outputs else b""


def outputs_of(answer: bytes) -> Mapping[str, Array]:
    """The outputs of a stored answer; empty without one. Raises `InvalidRequest` if it cannot be read."""
    try:
        return parse_infer_response(answer).outputs if answer else {}
    except InvalidRequest:
        raise
    except Exception as error:  # noqa: BLE001 (a disk that garbles is no reason to end with a traceback)
        raise InvalidRequest(f"an answer cannot be read: {error}") from None


def one_class(answer: OutputFacts, scores: Array) -> tuple[int, float] | None:
    """The class that one row of scores gives, and its probability; None if it gives one at each of several positions,
    or none.
    """
    return best_class(scores, answer.kind) if scores.ndim and scores.size == scores.shape[-1] else None


def class_label(signature: CaseSignature, outputs: Mapping[str, Array]) -> str:
    """The class name that a one-row answer gives; empty if it gives none."""
    answer = signature.answer
    if answer is None or answer.kind not in ("probabilities", "logits") or answer.name not in outputs:
        return ""
    best = one_class(answer, outputs[answer.name])
    return "" if best is None else label_of(best[0], answer.labels)
