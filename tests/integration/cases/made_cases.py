"""Cases made up and kept in a real database, for exports and what comes back."""

from __future__ import annotations

import io
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from upwell.edge.case_collection.case_database import FILE_NAME, CaseStore
from upwell.edge.case_collection.collected_case import (
    CaseFacts,
    CaseSignature,
    CollectedCase,
    answer_bytes,
    request_bytes,
)
from upwell.shared.routing.case_selection import Why
from upwell.shared.routing.policy.settings import CollectSettings
from upwell.shared.tensors import Array

NAMES = ('say "hi"', "[it's]", "a/b\\c", "\U0001f600 smile", "<&>", "../up", "con: x?*", "normal", ".", "line\nbreak")
"""Names of classes that some format, file system or reader may stumble over."""

DETECTOR = CaseSignature.model_validate(
    {
        "has_rows": True,
        "inputs": [{"name": "image", "kind": "image"}],
        "outputs": [{"name": "found", "kind": "detections", "labels": NAMES}],
    }
)
CLASSIFIER = CaseSignature.model_validate(
    {
        "has_rows": True,
        "inputs": [{"name": "image", "kind": "image"}],
        "outputs": [{"name": "scores", "kind": "probabilities", "labels": NAMES}],
    }
)


def encoded(size: tuple[int, int], form: str = "PNG", mode: str = "RGB", turn: int = 1, seed: int = 0) -> bytes:
    """A picture of noise; `turn` is its EXIF orientation."""
    width, height = size
    shape = (height, width) if mode == "L" else (height, width, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = turn
    Image.fromarray(pixels).save(file, form, **({"exif": exif} if turn != 1 else {}))
    return file.getvalue()


def as_input(picture: bytes) -> Array:
    """One row of BYTES."""
    row = np.empty(1, dtype=np.object_)
    row[0] = picture
    return row


@dataclass(frozen=True)
class Made:
    """A case to be kept: of a picture, or of other `inputs`."""

    picture: bytes
    cloud: Mapping[str, Array]
    edge: Mapping[str, Array]
    signature: CaseSignature = DETECTOR
    inclusion: float = 0.0
    hardness: float | None = None
    tags: Mapping[str, str] | None = None
    inputs: Mapping[str, Array] | None = None

    def case(self) -> CollectedCase:
        why: tuple[Why, ...] = ("random",) if self.inclusion else ("hard",)
        facts = CaseFacts(
            id=uuid.uuid4().hex, agent="a", model="m", tags=self.tags or {}, created_unix_s=1.7e9, why=why,
            inclusion=self.inclusion, signature=self.signature, edge_digest="sha256:e", cloud_digest="sha256:c",
            hardness=self.hardness, hard={"measure": "margin"} if self.hardness is not None else None,
        )  # fmt: skip
        request = request_bytes("m", self.inputs or {"image": as_input(self.picture)})
        return CollectedCase(facts, request, answer_bytes("m", self.edge), answer_bytes("m", self.cloud))


def keep(folder: Path, made: Sequence[Made]) -> list[str]:
    """Keep these in a state folder; their ids."""
    folder.mkdir(parents=True, exist_ok=True)
    store = CaseStore.open(folder / FILE_NAME)
    ids = []
    for number, one in enumerate(made):
        case = one.case()
        with store.transaction():
            assert store.add(case, CollectSettings(per_day=1 << 30, keep_bytes=1 << 40), 1.7e9 + number) == "kept"
        ids.append(case.facts.id)
    store.close()
    return ids


def boxes(dice: random.Random, most: int = 6) -> Array:
    """Random detections [1, 8, 6], the empty slots marked as the model marks them."""
    found = np.zeros((1, 8, 6), np.float32)
    found[:, :, 5] = -1
    for slot in range(dice.randint(0, most)):
        x1, y1 = dice.uniform(0, 0.9), dice.uniform(0, 0.9)
        x2, y2 = dice.uniform(x1 + 0.01, 1), dice.uniform(y1 + 0.01, 1)
        found[0, slot] = (x1, y1, x2, y2, dice.uniform(0.1, 1), dice.randrange(len(NAMES)))
    return found


def random_pictures(dice: random.Random, number: int) -> list[bytes]:
    """Small pictures of every kind."""
    found = []
    for seed in range(number):
        form = dice.choice(["PNG", "JPEG", "WEBP"])
        mode = dice.choice(["RGB", "L"]) if form != "WEBP" else "RGB"
        turn = dice.choice([1, 1, 3, 6, 8]) if form == "JPEG" else 1
        found.append(encoded((dice.randint(1, 40), dice.randint(1, 40)), form, mode, turn, seed))
    return found
