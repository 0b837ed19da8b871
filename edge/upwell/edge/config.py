"""`agent.yaml`: the configuration of an agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from upwell.edge.bundle.bundle import Trust
from upwell.edge.case_collection.cases_section import CasesSection
from upwell.edge.fleet.fleet_config import FleetSection
from upwell.edge.models.model_config import ModelSection
from upwell.edge.updates.releases.release_config import ReleaseSection
from upwell.shared.config.addresses import Endpoint, InterfaceName, ListenAddress
from upwell.shared.config.located_errors import Location, located
from upwell.shared.config.security import ClientSecurity, TlsFiles, check_endpoint, check_exposure
from upwell.shared.config.yaml import FilePart, RelativePath, load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.oip.server_keys import ServerKeys
from upwell.shared.telemetry.telemetry_keys import MetricsPush
from upwell.shared.units import Bytes, Seconds

DEFAULT_MAX_REQUESTS = 32


class ClientTls(FilePart):
    """TLS; required off loopback unless `insecure`."""

    ca: RelativePath | None = Field(None, description="Issuers of the server's certificate; default: the system's.")
    cert: RelativePath | None = Field(None, description="The device's own certificate chain, shown to the server.")
    key: RelativePath | None = Field(None, description="The device's private key.")

    @model_validator(mode="after")
    def _pair(self) -> ClientTls:
        if (self.cert is None) != (self.key is None):
            raise ValueError("`cert` and `key` go together; write both or neither")
        return self


class SpoolSection(FilePart):
    """Requests stored to be sent to the cloud later; needs `state_dir`."""

    limit: Bytes = Field(256 << 20, gt=0, description="Most bytes kept; the oldest go first.")
    max_age: Seconds = Field(7 * 86400.0, gt=0, description="Older cases are dropped.")
    results: RelativePath | None = Field(None, description="A file for results, one JSON object per line.")


class TrustSection(FilePart):
    """The keys whose signatures on bundles are trusted."""

    keys: list[RelativePath] = Field(
        [],
        description="PEM files of public keys; a signature by any one is enough.",
    )
    require: bool | None = Field(None, description="Refuse unsigned bundles. Default: if there are `keys`.")

    @model_validator(mode="after")
    def _has_keys(self) -> TrustSection:
        if self.require and not self.keys:
            raise ValueError("`require` needs `keys`, or every bundle would be refused")
        return self

    @property
    def trust(self) -> Trust:
        """The trust settings for verifying bundles."""
        return Trust(tuple(self.keys), bool(self.keys) if self.require is None else self.require)


class AgentSection(ServerKeys):
    """The agent itself."""

    name: str = Field("agent", min_length=1, description="Shown to callers in the server metadata, and in logs.")
    listen: tuple[ListenAddress, ...] = Field(
        ("127.0.0.1:8001",), min_length=1, description="Addresses for local callers: HOST:PORT or unix:/PATH."
    )
    state_dir: RelativePath | None = Field(None, description="A folder used by this agent alone, created if missing.")
    max_requests: int = Field(
        DEFAULT_MAX_REQUESTS, strict=True, ge=1, description="Inference requests handled at once; more are refused."
    )
    flights: int | None = Field(
        None,
        strict=True,
        ge=0,
        le=1_000_000,
        description="Requests, and as many frames, that `upwell explain` finds in `state_dir`. Default: 50000.",
    )
    otlp: MetricsPush | None = None
    cases: CasesSection | None = None
    spool: SpoolSection = SpoolSection.model_construct()
    trust: TrustSection = TrustSection.model_construct()


class CloudSection(FilePart):
    """The cloud; without it the agent runs on the edge alone."""

    endpoint: Endpoint = Field(
        description="HOST:PORT, dns:///NAME:PORT for all its addresses, or https://HOST for HTTP/1.1."
    )
    fallbacks: list[Endpoint] = Field([], description="Services with the same models, tried in this order.")
    interfaces: list[InterfaceName] = Field(
        [], description="Network interfaces, such as [wlan0, wwan0]: each request takes the first that will do (Linux)."
    )
    tls: ClientTls | None = None
    token_file: RelativePath | None = Field(None, description="A file with the token to send; read again on change.")
    insecure: bool = Field(False, description="Allow an endpoint off loopback without TLS.")

    @model_validator(mode="after")
    def _interfaces_differ(self) -> CloudSection:
        if len(set(self.interfaces)) < len(self.interfaces):
            raise ValueError("an interface is named twice in `interfaces`")
        return self

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All endpoints, the preferred one first."""
        return (self.endpoint, *self.fallbacks)

    @property
    def security(self) -> ClientSecurity:
        """The agent's credentials and the issuers it trusts."""
        tls = TlsFiles(self.tls.cert, self.tls.key, self.tls.ca) if self.tls else None
        return ClientSecurity(tls=tls, token_file=self.token_file, insecure=self.insecure)


class AgentConfig(FilePart):
    """A whole `agent.yaml`."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    agent: AgentSection = AgentSection.model_construct()
    cloud: CloudSection | None = None
    fleet: FleetSection | None = None
    policy: RelativePath | None = Field(None, description="The routing policy; without it every default holds.")
    pipelines: RelativePath | None = Field(
        None,
        description="Pipelines that `upwell agent` runs; needs the extra `pipelines`.",
    )
    release: ReleaseSection | None = None
    models: dict[Annotated[str, Field(min_length=1)], ModelSection] = Field(min_length=1)

    @model_validator(mode="after")
    def _holds_together(self) -> AgentConfig:
        found: dict[Location, str] = {
            ("models", name): "it has no edge side, and there is no `cloud` section to send it to"
            for name, model in self.models.items()
            if model.edge is None and self.cloud is None
        }
        for name, model in self.models.items():
            if model.edge is not None and model.edge.updates is not None and self.agent.state_dir is None:
                found["models", name, "edge", "updates"] = "fetched files need a folder; expected agent.state_dir"
        found |= self._sources()
        if self.fleet is not None and self.agent.state_dir is None:
            found["fleet",] = "the device's key and instance UID need a folder; expected agent.state_dir"
        if self.agent.cases is not None and self.agent.cases.to is None and self.fleet is None:
            found["agent", "cases"] = "delivery through a fleet service needs the section `fleet`"
        try:
            check_exposure([*self.agent.listen, *self.agent.listen_http], self.agent.security)
        except ConfigError as error:
            found["agent", "listen"] = error.problems[0].message
        for place, endpoint in self._endpoints():
            try:
                check_endpoint(endpoint, self.cloud.security)  # type: ignore[union-attr]  # or there were no endpoints
            except ConfigError as error:
                found[place] = error.problems[0].message
        if found:
            raise located(found)
        return self

    def as_written(self) -> dict[str, Any]:
        """The configuration with all defaults, as plain values that read back the same.

        Of a source what follows `?` is left out, since it may be a credential.
        """
        written = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        for name, model in self.models.items():
            if model.edge is not None and model.edge.updates is not None:
                written["models"][name]["edge"]["updates"]["source"] = model.edge.updates.place
        if self.release is not None:
            written["release"]["source"] = self.release.place
        return written

    def _sources(self) -> dict[Location, str]:
        """Problems with the sources of the models."""
        found: dict[Location, str] = {}
        if self.release is not None and self.agent.state_dir is None:
            found["release",] = "fetched files need a folder; expected agent.state_dir"
        for name, model in self.models.items():
            side = model.edge
            if side is None:
                continue
            if self.release is not None and side.updates is not None:
                text = "`release` alone decides what is installed; expected either `release` or `updates`"
                found["models", name, "edge", "updates"] = text
            if self.release is None and side.updates is None and not side.has_source:
                text = "expected `bundle` (a folder or archive), `file` (a model file) or `updates`"
                found["models", name, "edge"] = text
        return found

    def _endpoints(self) -> Iterator[tuple[Location, str]]:
        """Each endpoint with its position in the file."""
        if self.cloud is not None:
            yield ("cloud", "endpoint"), self.cloud.endpoint
            for index, endpoint in enumerate(self.cloud.fallbacks):
                yield ("cloud", "fallbacks", index), endpoint


def state_dir_of(config: Path, without: str, key: str = "agent") -> Path:
    """The state folder of the agent with that agent.yaml. Raises `ConfigError` that says `without` if there is none."""
    state_dir = load_yaml(config, AgentConfig).agent.state_dir
    if state_dir is None:
        raise ConfigError.at(config, without, key)
    return state_dir
