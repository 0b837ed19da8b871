"""A model by the name its callers use: its sides and its cuts."""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def entry_model(self) -> EdgeModel | None:
        """The model that takes callers' inputs: the whole on the device, or a head; None if only the cloud does."""
        if self.edge is not None or not self.heads:
            return self.edge
        return next((head.edge for head in self.heads if head.edge.signature.has_rows), self.heads[0].edge)

    def head(self, key: str) -> Head:
        """The head with this key."""
        return next(head for head in self.heads if head.split_route.key == key)

    @property
    def model_pair(self) -> ModelPair:
        """The pair that identifies calibrations; the cloud's digest is learned from its answers."""
        return ModelPair() if self.edge is None else ModelPair(self.edge.digest, runtime_name(self.edge.runtime))
