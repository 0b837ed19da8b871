"""How an artifact in an OCI registry is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from upwell.shared.errors import ConfigError
from upwell.shared.oip.security import Address

SCHEME = "oci://"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<registry>(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?)/(?P<repository>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True)
class Reference:
    """`registry/repository:tag` or `registry/repository@sha256:...`; where there is a digest, the tag says nothing."""

    registry: str
    repository: str
    tag: str
    digest: str

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read `oci://...`. Raises `ConfigError`."""
        found = _REFERENCE.fullmatch(text.removeprefix(SCHEME))
        if found is None or not (found["tag"] or found["digest"]):
            raise ConfigError.at(
                None,
                f"{text!r} names no artifact; expected oci://REGISTRY/REPOSITORY:TAG or "
                "oci://REGISTRY/REPOSITORY@sha256:DIGEST",
            )
        return cls(found["registry"], found["repository"], found["tag"] or "", found["digest"] or "")

    @property
    def is_loopback(self) -> bool:
        """Whether the registry can only be on this machine."""
        return Address(urlsplit(f"//{self.registry}").hostname or "").is_loopback

    def __str__(self) -> str:
        """As `oras` takes it."""
        return f"{self.registry}/{self.repository}" + (f"@{self.digest}" if self.digest else f":{self.tag}")
