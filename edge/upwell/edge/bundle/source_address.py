"""The sources of bundles and releases that agent.yaml can name: a folder, `https://...` or `oci://...`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ValidationInfo

from upwell.shared.config.addresses import Address, without_secrets
from upwell.shared.config.yaml import resolve
from upwell.shared.errors import ConfigError
from upwell.shared.value_classes import value_class

SCHEME = "oci://"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = (
    rf"(?P<registry>(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?)/(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_EXPECTED = "expected a folder, https://HOST/NAME.bundle.tar or oci://REGISTRY/REPOSITORY:TAG"
_HAS_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+:"


@value_class
class Reference:
    """`registry/repository:tag` or `registry/repository@sha256:...`; with a digest, the tag is ignored."""

    registry: str
    repository: str
    tag: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read `oci://...`. Raises `ConfigError`."""
        found = re.fullmatch(_REFERENCE, text.removeprefix(SCHEME))
        if found is None or not (found["tag"] or found["digest"]):
            raise ConfigError.at(
                None,
                f"{without_secrets(text)!r} does not name an artifact; expected oci://REGISTRY/REPOSITORY:TAG or "
                "oci://REGISTRY/REPOSITORY@sha256:DIGEST",
            )
        return cls(found["registry"], found["repository"], found["tag"] or "", found["digest"] or "")

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine."""
        return Address(urlsplit(f"//{self.registry}").hostname or "").is_loopback

    def __str__(self) -> str:
        """The form that `oras` accepts."""
        return f"{self.registry}/{self.repository}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


def check_source(text: str) -> None:
    """Raise `ConfigError` unless `text` names a source whose answers nobody on the network can change."""
    if text.startswith(SCHEME):
        Reference.parse(text)
        return
    if names_folder(text):
        return
    try:
        parts = urlsplit(text)
        host, user = parts.hostname or "", parts.username
        _ = parts.port
    except ValueError:
        raise ConfigError.at(None, f"{without_secrets(text)!r} is not an address; {_EXPECTED}") from None
    if user is not None:
        raise ConfigError.at(None, f"the address at {host} contains credentials; expected them in netrc")
    if parts.scheme == "file" and parts.path and host in ("", "localhost"):
        return
    if parts.scheme == "http" and not Address(host).is_loopback:
        raise ConfigError.at(None, f"{without_secrets(text)!r} is not protected in transit; expected https://")
    if parts.scheme not in ("http", "https") or not host or parts.path in ("", "/"):
        raise ConfigError.at(None, f"{without_secrets(text)!r} does not name a source of bundles; {_EXPECTED}")


def check_repository(text: str) -> None:
    """Raise `ConfigError` unless `text` names a repository of releases."""
    if text.startswith(SCHEME):
        problem = "a registry contains only payloads, which the release itself names"
        raise ConfigError.at(None, f"{problem}; expected a folder or https://HOST/PATH")
    check_source(text if names_folder(text) else f"{text.rstrip('/')}/metadata")


def source_key(check: Callable[[str], None]) -> BeforeValidator:
    """A pydantic field for a source that `check` accepts; a folder is relative to the file that names it."""

    def checked(value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        try:
            check(value)
        except ConfigError as error:
            raise ValueError(error.problems[0].message) from None
        return str(resolve(value, (info.context or {}).get("base_dir", Path()))) if names_folder(value) else value

    return BeforeValidator(checked)


def names_folder(text: str) -> bool:
    """Whether `text` is a path (perhaps relative to the file that names it) rather than an address."""
    return re.match(_HAS_SCHEME, text) is None
