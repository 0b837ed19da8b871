"""The folder that `upwell partition split` writes, and the agent and the service read.

OUT/split.json                              what there is (`SplitFacts`)
OUT/heads/c17/model.onnx, model.yaml        one model for the device per cut
OUT/tails/resnet--c17--1a2b3c4d/1/model.onnx, model.yaml      what `upwell serve --models OUT/tails` serves

Of a program of torch.export the tails are `model.safetensors`, for `--engine torch`, and OUT/whole.onnx is the whole
for the device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from upwell.shared.config.yaml import FilePart

FILE_NAME = "split.json"
WHOLE = "whole"


def split_file_of(plan: Path) -> Path:
    """The path of `split.json`, for the path of the file or of its folder."""
    return plan / FILE_NAME if plan.is_dir() else plan


class CutTensor(FilePart):
    """A tensor that crosses. `shape`: -1 is a variable dimension. `bytes` are for one row, with the other
    variable dimensions as large as in the plan's profiles; without a plan they count as 1.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    bytes: int = Field(ge=0)


class CutFacts(FilePart):
    """One cut. `head` is the head's model file, relative to the folder; `tail` the model name of its tail.

    `edge_s` and `cloud_s` are measured or planned times of head and tail, null without a profile. `raw_inputs` are
    inputs of the whole that the tail takes as the caller gave them. `outputs` are those of the whole that the head
    makes and the tail does not. `needs_post`: both halves give the model's own tensors, and their caller applies the
    whole model's `post`.
    """

    name: str
    head: str
    tail: str
    tensors: tuple[CutTensor, ...]
    raw_inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    needs_post: bool = False
    edge_s: float | None = Field(None, ge=0)
    cloud_s: float | None = Field(None, ge=0)


class SplitFacts(FilePart):
    """`split.json`. `whole` is the SHA-256 of the model that was split, in the form that the device runs, in hex.

    `format` is that of the heads. `program` is the SHA-256 of the torch.export program, if it was one.
    """

    version: Literal[1] = 1
    kind: Literal["upwell.partition.split"] = "upwell.partition.split"
    model: str
    format: Literal["onnx", "tflite"]
    whole: str
    program: str = ""
    cuts: tuple[CutFacts, ...] = Field(min_length=1)
