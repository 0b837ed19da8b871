"""`models` in `agent.yaml`: a model's side on the device, its side in the cloud, and how it is split."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from upwell.edge.bundle.source_address import check_source, source_key
from upwell.edge.runtimes.runtime_options import RuntimeOptions
from upwell.shared.config.yaml import FilePart, RelativePath
from upwell.shared.units import Bytes, Seconds


class UpdatesSection(FilePart):
    """Where new versions of a bundle come from; the newest replaces `bundle`. Needs `state_dir`."""

    source: Annotated[str, source_key(check_source)] = Field(
        min_length=1,
        description="A folder, `https://…/model.bundle.tar`, or `oci://registry/repository:tag` (or `@sha256:…`).",
    )
    every: Seconds = Field(3600.0, ge=1.0, description="How often to look.")
    digest: str = Field(
        "", pattern=r"^(sha256:[0-9a-f]{64})?$", description="Accept only the archive with this digest, `sha256:…`."
    )
    ca: RelativePath | None = Field(None, description="Issuers of the server's certificate; default: the system's.")

    @property
    def place(self) -> str:
        """The source without what follows `?`, which may be a credential."""
        return self.source.partition("?")[0]


class EdgeSide(RuntimeOptions):
    """The model on the device, as `bundle` or `file`; without it the cloud is the only route."""

    bundle: RelativePath | None = Field(
        None,
        description="A folder with a model and its model.yaml, or a packed archive.",
    )
    file: RelativePath | None = Field(
        None, description="A model file; a `.yaml` file of the same name beside it is its description."
    )
    exits: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        description="Of a head that answers early: when it is unsure, these outputs go up to the tail in `cloud`.",
    )
    updates: UpdatesSection | None = None

    @model_validator(mode="after")
    def _one_source(self) -> EdgeSide:
        if self.bundle is not None and self.file is not None:
            raise ValueError("expected either `bundle` (a folder or archive) or `file` (a model file)")
        if self.file is not None and self.updates is not None:
            raise ValueError("`updates` needs a bundle; a bare file has no version")
        return self

    @property
    def has_source(self) -> bool:
        """Whether it names a bundle or file on the device."""
        return self.bundle is not None or self.file is not None


class CloudSide(FilePart):
    """The model's name in the cloud; without it the device answers alone."""

    model: str = Field(min_length=1, description="The model's name in the cloud.")


class SplitSection(FilePart):
    """A model split between device and cloud: a folder that `upwell partition split` wrote.

    auto: `split` in the bundle or beside the file.
    """

    plan: RelativePath = Field(description="The folder, or its split.json.")
    memory: Bytes = Field(256 << 20, gt=0, description="Most memory for ready heads.")


def _split(value: object) -> object:
    return {"plan": value} if isinstance(value, str) and value not in ("off", "auto") else value


class ModelSection(FilePart):
    """A model, by the name that callers use."""

    edge: EdgeSide | None = None
    cloud: CloudSide | None = None
    split: Annotated[Literal["off", "auto"] | SplitSection, BeforeValidator(_split)] = "off"

    @model_validator(mode="after")
    def _some_side(self) -> ModelSection:
        if self.edge is None and self.cloud is None and not isinstance(self.split, SplitSection):
            raise ValueError("expected `edge`, `cloud` or both")
        if self.edge is not None and self.edge.exits and (self.cloud is None or self.split != "off"):
            raise ValueError("`edge.exits` go to the tail that `cloud` names; expected `cloud`, and no `split`")
        return self
