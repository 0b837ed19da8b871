"""A model by the name its callers use: its sides and its cuts."""

from __future__ import annotations

from dataclasses import dataclass, field

from upwell.edge.models.edge_model import EdgeModel, Head
from upwell.edge.runtimes.base import runtime_name
from upwell.shared.routing.policy.settings import ModelPair


@dataclass(frozen=True)
class ServedModel:
    """A model by the name its callers use; `cloud_model` is its name in the cloud, empty without a cloud side.

    `heads` are the cuts at which it can be split. For the tail of a cut, `whole` is the name of the split model.
    """

    name: str
    edge: EdgeModel | None
    cloud_model: str = ""
    heads: tuple[Head, ...] = ()
    whole: str = ""
    entry_model: EdgeModel | None = field(init=False)
    """The model that takes callers' inputs: the whole on the device, or a head; None if only the cloud does."""

    def __post_init__(self) -> None:
        """Choose the entry model once."""
        heads = [head.edge for head in self.heads]
        chosen = self.edge or next((head for head in heads if head.signature.has_rows), heads[0] if heads else None)
        object.__setattr__(self, "entry_model", chosen)

    def head(self, key: str) -> Head:
        """The head with this key."""
        return next(head for head in self.heads if head.split_route.key == key)

    @property
    def model_pair(self) -> ModelPair:
        """The pair that identifies calibrations; the cloud's digest is learned from its answers."""
        return ModelPair() if self.edge is None else ModelPair(self.edge.digest, runtime_name(self.edge.runtime))
