"""Reads the metrics page of an agent or service."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from upwell.shared.errors import ConfigError, Unavailable

MAX_BYTES = 16 << 20
TIMEOUT_S = 3.0

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scrape:
    """All samples of a page by name and labels, read at `at_s` (monotonic)."""

    at_s: float
    samples: Mapping[str, Mapping[Labels, float]]

    def of(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """The samples of that name, each with its labels."""
        for labels, value in self.samples.get(name, {}).items():
            yield dict(labels), value

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples with that name and these labels."""
        return sum(value for own, value in self.of(name) if labels.items() <= own.items())


def page_url(at: str) -> str:
    """`HOST:PORT`, or a complete URL -> the URL of the metrics page. Raises `ConfigError`."""
    url = at if "://" in at else f"http://{at}"
    try:
        parts = urlsplit(url)
        is_readable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_readable = False
    if not is_readable:
        raise ConfigError.at(None, f"expected HOST:PORT of a metrics page, or its URL; got {at!r}", "--at")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/metrics"


def scrape(url: str) -> Scrape:
    """Read the page. Raises `Unavailable` if nobody answers there, or not with metrics of Upwell."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 (http or https, see `page_url`)
            text = answer.read(MAX_BYTES + 1)
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        raise Unavailable(f"no metrics at {url}: {reason}; is `metrics` set in agent.yaml or cloud.yaml?") from None
    if len(text) > MAX_BYTES:
        raise Unavailable(f"the page at {url} has more than {MAX_BYTES} bytes")
    samples: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text.decode()):
            for one in family.samples:
                samples.setdefault(one.name, {})[tuple(sorted(one.labels.items()))] = float(one.value)
    except (UnicodeDecodeError, ValueError):
        raise Unavailable(f"the page at {url} has no readable metrics") from None
    if not any(name.startswith("upwell_") for name in samples):
        raise Unavailable(f"the page at {url} has no metrics of Upwell")
    return Scrape(time.monotonic(), samples)
