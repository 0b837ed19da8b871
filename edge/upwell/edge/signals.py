"""A request as the router sees it, and its inputs as they would go up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from upwell.edge.desk import Desk
from upwell.edge.models.served import ServedModel
from upwell.edge.rows import size_bytes
from upwell.shared.routing.rules import Subject
from upwell.shared.routing.state import Signals
from upwell.shared.signature.images import encode_for_uplink
from upwell.shared.tensors import Array


def signals_of(
    desk: Desk,
    model: ServedModel,
    inputs: Mapping[str, Array],
    deadline_s: float,
    tags: Mapping[str, str],
    arrived_s: float,
) -> tuple[Signals, Mapping[str, Array]]:
    """The signals, and the inputs as the whole model in the cloud takes them: pictures are encoded before anything is
    decided, since it is the bytes really sent that decide. Raises `InvalidRequest` for inputs that do not fit.
    """
    edge, face = model.edge, model.face
    rows = face.signature.check_inputs(inputs) if face else 1
    has_cloud = bool(model.cloud_model) and desk.uplink is not None
    sent_inputs = encode_for_uplink(face.signature, inputs) if face and has_cloud else inputs
    sizes: tuple[int, ...]
    if edge and edge.exits:
        sizes = (edge.exit_row_bytes,) * rows
    elif face is None:
        sizes = (size_bytes(inputs),)
    else:
        row_bytes = face.signature.row_bytes
        sizes = face.signature.row_sizes_bytes(sent_inputs) if row_bytes is None else (row_bytes,) * rows
    hards = desk.router.hards(model.name)
    has_scores = bool(hards) and edge is not None and edge.can_score(hards)
    ahead = face.lane.ahead if face else 0
    subject = Subject(model.name, tags, max(sizes), time.time())
    signals = Signals(subject, sizes, arrived_s, deadline_s, edge is not None, has_cloud, has_scores, ahead)
    if (model.heads and desk.uplink is not None) or (edge and edge.exits):
        ways = tuple(head.way for head in model.heads if head.takes(rows)) if desk.uplink is not None else ()
        signals = replace(signals, ways=ways, exits=edge is not None and bool(edge.exits))
    return signals, sent_inputs
