"""`upwell serve`: runs the cloud service from a file or from flags, or prints the configuration in force."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from upwell.cloud.config import CloudConfig
from upwell.shared.config.addresses import parse_address
from upwell.shared.config.yaml import as_yaml, load_yaml
from upwell.shared.errors import ConfigError, ExtraMissing
from upwell.shared.units import parse_bytes, seconds_as_written


def printed(config: CloudConfig, *, as_json: bool) -> str:
    """The configuration with all defaults, as YAML or JSON that reads back the same. Secrets appear only as paths.

    Values that depend on the machine (`instances`) are left out unless written.
    """
    written = config.as_written()
    written["serve"]["max_connection_age"] = seconds_as_written(config.serve.connection_age_s or 0.0)
    return json.dumps(written) if as_json else as_yaml(written)


DEFAULT_LISTEN = "127.0.0.1:8001"

_LISTEN = f"HOST:PORT (port 0: any free) or unix:PATH; may be repeated. Default: {DEFAULT_LISTEN}."


class EngineName(str, Enum):
    """The engines included in Upwell."""

    ONNX = "onnx"
    TORCH = "torch"
    JAX = "jax"


def serve(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The cloud.yaml to run.")] = None,
    models: Annotated[Path | None, typer.Option(help="Model repository: <name>/<version>/model.onnx.")] = None,
    listen: Annotated[list[str] | None, typer.Option(help=_LISTEN)] = None,
    engine: Annotated[EngineName | None, typer.Option(help="The engine that runs the models.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain of the service (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate (PEM).")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="Issuers of the certificates that clients must present.")
    ] = None,
    tokens: Annotated[Path | None, typer.Option(help="tokens.yaml: the accepted bearer tokens.")] = None,
    max_message: Annotated[str | None, typer.Option(help="Largest message, such as 64MiB.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond loopback without TLS and authentication.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the configuration with all defaults, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --print-config: print JSON instead of YAML.")] = False,
) -> None:
    """Run the cloud service until SIGTERM or Ctrl-C; accepted requests are answered first.

    Give either a cloud.yaml (with --listen at most), or --models and the other flags.
    """
    flags = {
        "models": models,
        "engine": engine.value if engine else None,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "client_ca": client_ca,
        "tokens": tokens,
        "max_message": max_message,
        "insecure": insecure or None,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    for address in listen or ():
        parse_address(address)
    found = _from_file(config, given, listen) if config else _from_flags(given, listen)
    if print_config:
        typer.echo(printed(_resolved(found), as_json=as_json))
    elif as_json:
        raise ConfigError.at(None, "--json needs --print-config")
    else:
        _run(found, config)


def _from_file(path: Path, flags: dict[str, Any], listen: list[str] | None) -> CloudConfig:
    if flags:
        flag = "--" + next(iter(flags)).replace("_", "-")
        raise ConfigError.at(None, f"{flag} cannot be combined with --config; write it into {path}")
    config = load_yaml(path, CloudConfig)
    return config.listening_on(listen) if listen else config


def _from_flags(flags: dict[str, Any], listen: list[str] | None) -> CloudConfig:
    """The configuration from the flags. Raises `ConfigError`."""
    if "models" not in flags:
        raise ConfigError.at(None, "give --config cloud.yaml, or --models with the folder of the models")
    tls = {key: flags[flag] for key, flag in (("cert", "tls_cert"), ("key", "tls_key")) if flag in flags}
    if len(tls) == 1 or ("client_ca" in flags and not tls):
        raise ConfigError.at(None, "TLS needs --tls-cert and --tls-key; --client-ca needs both")
    serve: dict[str, Any] = {key: flags[key] for key in ("models", "tokens", "insecure") if key in flags}
    serve["listen"] = listen or [DEFAULT_LISTEN]
    if "max_message" in flags:
        serve["max_message"] = _size(flags["max_message"])
    if tls:
        serve["tls"] = {**tls, "client_ca": flags.get("client_ca")}
    defaults = {"engine": flags["engine"]} if "engine" in flags else {}
    return CloudConfig.model_validate({"version": 1, "serve": serve, "defaults": defaults})


def _size(text: str) -> str:
    try:
        if parse_bytes(text) > 0:
            return text
        problem = "expected more than 0"
    except ValueError as error:
        problem = str(error)
    raise ConfigError.at(None, problem, "--max-message")


def _resolved(config: CloudConfig) -> CloudConfig:
    """The configuration with `workers: auto` resolved for this machine."""
    if config.serve.workers != "auto":
        return config
    from upwell.cloud.workers.worker_count import resolved

    return resolved(config)


def _run(config: CloudConfig, path: Path | None) -> None:
    """Serve. Errors in keys that appear only then name the file at `path`, if there is one."""
    with ExtraMissing.on_import("cloud", "upwell serve needs PACKAGE"):
        from upwell.cloud.workers.serving_process import run
    try:
        run(config)
    except ConfigError as error:
        if path is None or not all(one.key and one.path is None for one in error.problems):
            raise
        raise ConfigError([replace(one, path=path) for one in error.problems]) from None
