"""The cloud service as a Ray Serve application, for several machines without Kubernetes; see `examples/ray`.

Each replica is the whole service with every model of its cloud.yaml. One deployment per model would let models scale
apart, but costs another hop between processes for each request. Models that must scale apart are better served as
separate applications, which the gRPC proxy tells apart by the metadata key `application`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upwell.cloud.config import CloudConfig
from upwell.cloud.ray.replica import QUICK_CALLS, Replica
from upwell.cloud.service.model_loader import find_models
from upwell.shared.config.addresses import parse_address
from upwell.shared.config.security import check_exposure
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError, ExtraMissing, ModelFailed, Problem

if TYPE_CHECKING:
    from ray.serve import Application

NAME = "upwell"
"""Name of the application and of its deployment."""

_SERVICER = "upwell.cloud.ray.replica.add_methods"
_MAX_MESSAGE = "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE"
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 (Ray's proxy always listens on all interfaces)
_LEFT_OUT = {
    "tls": "Ray's gRPC proxy has no TLS; put a proxy that has it in front",
    "tokens": "tokens would cross the network in clear, since Ray's gRPC proxy has no TLS",
    "listen_http": "only Ray's gRPC proxy speaks the protocol",
    "metrics": "the replicas of a machine cannot share a port; Ray has its own metrics",
    "max_connection_age": "Ray's gRPC proxy keeps connections as long as clients do",
    "access_log": "Ray logs requests its own way",
}
"""Keys of `serve` that Ray cannot honour, with the reason."""


@dataclass(frozen=True)
class Scale:
    """Number of replicas, and the resources of each. Times in seconds.

    `target` is the number of requests in progress per replica to aim for; None: as many as one replica runs at once.
    """

    min_replicas: int = 1
    max_replicas: int = 4
    cpus: int = 1
    gpus: float = 0.0
    target: float | None = None
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for impossible numbers."""
        if not 1 <= self.min_replicas <= self.max_replicas:
            text = f"expected 1 <= min_replicas <= max_replicas, got {self.min_replicas} and {self.max_replicas}"
            raise ConfigError.at(None, text)
        if self.cpus < 1 or self.gpus < 0 or (self.target is not None and self.target <= 0):
            text = f"expected cpus >= 1, gpus >= 0 and target > 0, got {self.cpus}, {self.gpus} and {self.target}"
            raise ConfigError.at(None, text)
        if min(self.upscale_delay_s, self.downscale_delay_s) < 0:
            raise ConfigError.at(None, "expected delays of at least 0 seconds")


def build(args: Mapping[str, str]) -> Application:
    """The application, for `serve run upwell.cloud.ray.serve:build config=/path/cloud.yaml` and for Serve's config
    files.

    `args` has `config`, and the fields of `Scale` that differ from the default. Raises `ConfigError`.
    """
    rest = dict(args)
    if "config" not in rest:
        raise ConfigError.at(None, "give config=/path/of/cloud.yaml")
    config = load_yaml(Path(rest.pop("config")), CloudConfig)
    return application(config, _scale(rest))


def application(config: CloudConfig, scale: Scale) -> Application:
    """The application of a configuration, which is sent to the replicas by value; model files are not.

    Raises `ConfigError`, and `ExtraMissing` without Ray.
    """
    with ExtraMissing.on_import("ray", "serving with Ray needs PACKAGE"):
        from ray import serve
    check(config)
    config = on_cpus(config, scale.cpus)
    at_once, waiting = _room(config)
    deployment = serve.deployment(
        name=NAME,
        max_ongoing_requests=sum(at_once) + waiting + QUICK_CALLS,
        max_queued_requests=max(1, waiting),
        graceful_shutdown_timeout_s=config.serve.drain,
        ray_actor_options={"num_cpus": scale.cpus, "num_gpus": scale.gpus},
        autoscaling_config={
            "min_replicas": scale.min_replicas,
            "initial_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            "target_ongoing_requests": scale.target or float(min(at_once)),
            "upscale_delay_s": scale.upscale_delay_s,
            "downscale_delay_s": scale.downscale_delay_s,
        },
    )(Replica)
    return deployment.bind(config.as_written())


def start(config: CloudConfig, scale: Scale, request_timeout_s: float) -> None:
    """Serve on the Ray cluster to which this process is connected, or on a new one; returns once it is up.

    Raises `ConfigError`, also if the cluster's gRPC proxies already listen elsewhere, and `ModelFailed` with the last
    replica's reason if no replica can start.
    """
    app = application(config, scale)
    os.environ.setdefault(_MAX_MESSAGE, str(config.serve.max_message))  # read by proxies that are started here
    from ray import serve
    from ray.serve.config import ProxyLocation, gRPCOptions

    port = parse_address(config.serve.listen[0]).port
    options = gRPCOptions(port=port, grpc_servicer_functions=[_SERVICER], request_timeout_s=request_timeout_s)
    serve.start(proxy_location=ProxyLocation.EveryNode, grpc_options=options)
    try:
        serve.run(app, name=NAME, route_prefix=f"/{NAME}")  # a proxy does not know an application without a prefix
    except RuntimeError as error:  # it says no more than that it failed
        deployment = serve.status().applications[NAME].deployments.get(NAME)
        raise ModelFailed(reason_in(deployment.message if deployment else str(error))) from error


def reason_in(message: str) -> str:
    """Why replicas do not start: the last error of ours in the tracebacks of Ray's message, else the whole message."""
    found = re.findall(r"^upwell\.[\w.]+: (.+)$", message, re.MULTILINE)
    return found[-1] if found else message


def check(config: CloudConfig) -> None:
    """Raise `ConfigError` for everything that Ray cannot honour, and for ports that would be open by accident."""
    problems = list(_problems(config))
    if problems:
        raise ConfigError(problems)
    check_exposure(config.serve.listen, config.serve.security)


def on_cpus(config: CloudConfig, cpus: int) -> CloudConfig:
    """The configuration with `instances`, where not written, chosen for `cpus` cores instead of the machine's."""
    if config.defaults.instances is not None:
        return config

    def instances(name: str) -> dict[str, int]:
        own = config.settings(name)
        return {"instances": max(1, cpus // own.threads) if own.is_on_cpu else 1}

    models = {
        name: model if model.instances is not None else model.model_copy(update=instances(name))
        for name, model in config.models.items()
    }
    defaults = config.defaults.model_copy(update=instances(""))
    return config.model_copy(update={"defaults": defaults, "models": models})


def _problems(config: CloudConfig) -> Iterator[Problem]:
    serve = config.serve
    for key, why in _LEFT_OUT.items():
        if getattr(serve, key):
            yield Problem(None, None, None, f"serve.{key}", f"is not supported with Ray: {why}")
    if serve.workers != 1:
        yield Problem(None, None, None, "serve.workers", "is not supported with Ray: its replicas take their place")
    if serve.repository.may_change:
        text = "is not supported with Ray: replicas would diverge; redeploy instead"
        yield Problem(None, None, None, "serve.repository", text)
    if serve.log != "text":
        yield Problem(None, None, None, "serve.log", "is not supported with Ray, which logs its own way")
    address = parse_address(serve.listen[0]) if not serve.listen[0].startswith("unix:") else None
    if len(serve.listen) != 1 or address is None or address.host not in _ANYWHERE or not address.port:
        text = "Ray's gRPC proxies listen on one port of every interface; write ['[::]:8001'] or another port"
        yield Problem(None, None, None, "serve.listen", text)


def _room(config: CloudConfig) -> tuple[list[int], int]:
    """The requests that each model runs at once, and the number that may wait in all models."""
    names = {folder.name for folder in find_models(config)}
    if not names:
        raise ConfigError.at(None, f"no model in {config.serve.models}")
    every = [config.settings(name) for name in sorted(names)]
    return [one.instances * one.max_batch for one in every], sum(one.max_queue for one in every)


def _scale(args: Mapping[str, str]) -> Scale:
    """The fields of `Scale` as written on a command line."""
    kinds = {"min_replicas": int, "max_replicas": int, "cpus": int}
    numbers: dict[str, Any] = {}
    for name, text in args.items():
        if name not in Scale.__dataclass_fields__:
            raise ConfigError.at(
                None, f"unknown argument; expected config, {', '.join(Scale.__dataclass_fields__)}", name
            )
        try:
            numbers[name] = kinds.get(name, float)(text)
        except ValueError:
            raise ConfigError.at(None, f"expected a number, got {text!r}", name) from None
    return Scale(**numbers)
