"""The pages of the preview, served beside the metrics: the page itself, its files, and the pipelines' pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

from upwell.pipelines.preview.preview import Preview
from upwell.shared.config.security import parse_address
from upwell.shared.errors import ConfigError
from upwell.shared.telemetry.page_server import Page, PageReply, PageRequest

_FILES = MappingProxyType(
    {
        "": ("index.html", "text/html; charset=utf-8"),
        "app.js": ("app.js", "text/javascript; charset=utf-8"),
        "picture.js": ("picture.js", "text/javascript; charset=utf-8"),
        "figures.js": ("figures.js", "text/javascript; charset=utf-8"),
        "drawing.js": ("drawing.js", "text/javascript; charset=utf-8"),
        "style.css": ("style.css", "text/css; charset=utf-8"),
        "icon.svg": ("icon.svg", "image/svg+xml"),
    }
)
"""Maps paths below /preview/ to files of this package and their content types."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content security policy: no other origins, nothing inline, no framing. Text of a model or file cannot become HTML."""

_HEADERS = MappingProxyType(
    {
        "Cache-Control": "no-store",
        "Content-Security-Policy": _POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
)
_TEXT = "text/plain; charset=utf-8"


def preview_pages(previews: Mapping[str, Preview]) -> Mapping[str, Page]:
    """The pages for `serve_pages`. `previews` is read again for each reply, so pipelines may come and go.

    `/preview` is the page, `/preview.json` the names of the pipelines, `/preview/NAME.json` the document of one, and
    `/preview/NAME.jpg?frame=NUMBER` its picture, that of the newest frame without a number.
    """
    folder = files("upwell.pipelines.preview") / "page"
    static = {path: _reply((folder / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}

    def below(request: PageRequest) -> PageReply:
        path = request.path.removeprefix("/preview").removeprefix("/")
        if path in static:
            return static[path]
        name, _, kind = path.rpartition(".")
        preview = previews.get(name)
        if preview is not None and kind == "json":
            return _reply(json.dumps(preview.document(), allow_nan=False).encode("ascii"))
        if preview is not None and kind == "jpg":
            number = request.query.get("frame", "")
            is_number = number.isascii() and number.isdigit() and len(number) < 20
            picture = preview.picture(int(number) if is_number else None)
            if picture is not None:
                return _reply(picture, "image/jpeg")
        return _reply(b"not here, or not any more\n", _TEXT, 404)

    def names(_: PageRequest) -> PageReply:
        return _reply(json.dumps({"pipelines": list(previews)}).encode("ascii"))

    return {"/preview/": _for_this_machine(below), "/preview.json": _for_this_machine(names)}


def check_preview_address(address: str | None, key: str) -> None:
    """Refuse to show pictures to a network. `address` is that of the metrics, `key` the key that asks for the preview.

    Raises `ConfigError` if there is no address, or if other machines can reach it: the pages have no authentication.
    """
    if address is None:
        raise ConfigError.at(None, "the preview is served beside the metrics: set `agent.metrics` to an address", key)
    if not parse_address(address).is_loopback:
        raise ConfigError.at(
            None,
            f"{address} can be reached from outside this machine, where anyone could see the pictures: set "
            "`agent.metrics` to an address such as 127.0.0.1:9464, or leave `preview` out",
            key,
        )


def _for_this_machine(page: Page) -> Page:
    """Serve the page only to requests whose Host is a local name; another name may belong to a web site that points
    here.

    Otherwise a web page could read the pictures in a user's browser by DNS rebinding.
    """

    def answer(request: PageRequest) -> PageReply:
        try:
            address = parse_address(_with_port(request.host))
            is_own = address.is_loopback and address.socket_path is None
        except ConfigError:
            is_own = False
        return page(request) if is_own else _reply(b"the preview is for 127.0.0.1 and localhost\n", _TEXT, 403)

    return answer


def _with_port(host: str) -> str:
    return host if host.rpartition("]")[2].rpartition(":")[1] else f"{host}:80"


def _reply(body: bytes, content_type: str = "application/json; charset=utf-8", status: int = 200) -> PageReply:
    return PageReply(body, content_type, status, _HEADERS)
