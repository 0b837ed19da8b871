"""The pages and their login sessions. They show and do what the REST interface does, through the same operations.

A session is a signed cookie, valid at every replica until it expires or the user is removed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from upwell.fleet.api import budget_operations, device_and_user_operations, rollout_operations, shadow_operations
from upwell.fleet.api.operation_table import AdmittedCall, Nothing
from upwell.fleet.api.rest_endpoint import STATUSES, UserGate
from upwell.fleet.opamp import opamp_endpoint
from upwell.fleet.opamp.poll_handler import FleetState
from upwell.fleet.registry import devices
from upwell.fleet.registry.devices import Stored
from upwell.fleet.rollout.rollout_store import counts_of
from upwell.fleet.rollout.state_machine import since
from upwell.fleet.rollout.wave_gate import NO_COUNTS, Counts
from upwell.fleet.storage.database import Database
from upwell.fleet.storage.tables import FACTS, USERS
from upwell.fleet.users import User
from upwell.shared.errors import InvalidRequest, NotAllowed, UpwellError

COOKIE = "__Host-upwell-fleet"
"""The prefix makes browsers accept it only over TLS and only for this host."""

SESSION_S = 12 * 3600.0
_FACT = "dashboard key"

PAGE = 100
"""Devices on one page."""

_DEGRADED = "degraded."
MAX_FORM_BYTES = 16 << 10
_HERE = Path(__file__).parent
_FILES: Mapping[str, str] = {
    "app.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "vendor/htmx.min.js": "text/javascript; charset=utf-8",
    "vendor/uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "vendor/uPlot.min.css": "text/css; charset=utf-8",
}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
"""Content security policy: no other origins, nothing inline, no framing."""

_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_TABLES = (device_and_user_operations.TABLE, rollout_operations.TABLE, budget_operations.TABLE, shadow_operations.TABLE)
_OPERATIONS = {one.name: one for table in _TABLES for one in table}
_DONE = {"pause": "pauseRollout", "resume": "resumeRollout", "back": "takeRolloutBack"}
_NO_QUERY: Mapping[str, Any] = MappingProxyType({})
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Session:
    """A logged-in user; every change must carry `csrf`."""

    user: User
    csrf: str


class Sessions:
    """Issues and checks cookies. The key is in the database, so replicas share it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key = _key(database)

    def begin(self, user: User, now_unix_s: float) -> str:
        """The value of a new session's cookie."""
        facts = {"user": user.name, "token": self._stored(user.name)[1][:16], "until": now_unix_s + SESSION_S}
        body = base64.urlsafe_b64encode(json.dumps({**facts, "nonce": secrets.token_hex(8)}).encode()).decode()
        return f"{body}.{self._sign('session', body)}"

    def session(self, cookie: str, now_unix_s: float) -> Session | None:
        """The session of a cookie; None if it is forged or expired, or if the user now has another token."""
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", body).encode()):
            return None
        facts = json.loads(base64.urlsafe_b64decode(body))
        user, token = self._stored(facts["user"])
        if user is None or facts["until"] < now_unix_s or token[:16] != facts["token"]:
            return None
        return Session(user, self._sign("csrf", body))

    def _stored(self, name: str) -> tuple[User | None, str]:
        with self._database.reading() as connection:
            row = connection.execute(select(USERS.c.role, USERS.c.token_sha256).where(USERS.c.name == name)).first()
        return (None, "") if row is None else (User(name, row.role), row.token_sha256)

    def _sign(self, purpose: str, body: str) -> str:
        return hmac.new(self._key, f"{purpose} {body}".encode(), hashlib.sha256).hexdigest()


def _key(database: Database) -> bytes:
    known = select(FACTS.c.value).where(FACTS.c.name == _FACT)
    with database.reading() as connection:
        found = connection.scalar(known)
    if found is None:
        try:
            with database.writing() as connection:
                connection.execute(insert(FACTS).values(name=_FACT, value=secrets.token_hex(32)))
        except IntegrityError:
            pass  # another replica was first
        with database.reading() as connection:
            found = connection.scalar(known)
    return bytes.fromhex(str(found))


@dataclass(frozen=True)
class Glance:
    """How many devices run which release and version, and what they have served since they started. `up` of the
    requests went to the cloud, `degraded` counts those that did not, by reason. `rtt_s` is the median of the devices
    that know theirs, `waiting` the number of cases in their spools. `drifting` counts devices that report drift; None
    if none reports on it.
    """

    devices: int
    releases: Mapping[str, int]
    versions: Mapping[str, int]
    counts: Counts
    up: int
    degraded: Mapping[str, int]
    rtt_s: float | None
    waiting: int
    drifting: int | None


def glance(every: Iterable[Stored]) -> Glance:
    """The totals of these devices, without revoked ones."""
    here = [one for one in every if one["revoked_unix_s"] is None]
    releases = Counter("none" if one["release"] is None else str(one["release"]) for one in here)
    versions = Counter(one["attributes"].get("service.version", "") or "unknown" for one in here)
    counts = sum((counts_of(one["statistics"]["counts"]) for one in here if one["statistics"]), NO_COUNTS)
    ups = [one["statistics"]["counts"].get("up", 0) for one in here if one["statistics"]]
    up = min(counts.requests, sum(one for one in ups if isinstance(one, int)))
    degraded: Counter[str] = Counter()
    for one in here:
        degraded.update(_degraded(one))
    now = [_now(one) for one in here]
    known_s = [one["rtt_s"] for one in now if isinstance(one.get("rtt_s"), float)]
    waiting = sum(one["spool_waiting"] for one in now if isinstance(one.get("spool_waiting"), int))
    drifts = [one["drift"] for one in here if one["drift"]]
    drifting = sum(bool(devices.drift_of(one)) for one in drifts) if drifts else None
    return Glance(
        len(here), dict(sorted(releases.items())), dict(sorted(versions.items())), counts, up,
        dict(degraded.most_common()), median(known_s) if known_s else None, waiting, drifting,
    )  # fmt: skip


def _counts(device: Stored) -> Mapping[str, Any]:
    return dict((device["statistics"] or {}).get("counts", {}))


def _now(device: Stored) -> Mapping[str, Any]:
    """The state of link and spool in the device's last report."""
    found = _counts(device).get("now")
    return found if isinstance(found, dict) else {}


def _degraded(device: Stored) -> dict[str, int]:
    counts = {name: count for name, count in _counts(device).items() if name.startswith(_DEGRADED)}
    return {name.removeprefix(_DEGRADED): count for name, count in counts.items() if isinstance(count, int)}


def pages(state: FleetState, gate: UserGate) -> list[BaseRoute]:
    """The routes."""
    return _Pages(state, gate).routes()


class _Pages:
    def __init__(self, state: FleetState, gate: UserGate) -> None:
        self._state = state
        self._gate = gate
        self._sessions = Sessions(state.database)
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= {"when": _when, "share": _share, "ms": _ms, "percent": _percent}
        self._static = {name: (_HERE / "static" / name).read_bytes() for name in _FILES}

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self._page(self._fleet)),
            Route("/devices/{device}", self._page(self._device)),
            Route("/devices/{device}/explain", self._form(self._ask), methods=["POST"]),
            Route("/questions/{question}", self._page(self._question)),
            Route("/rollouts", self._page(self._rollouts)),
            Route("/rollouts/{rollout}", self._page(self._rollout)),
            Route("/rollouts/{rollout}/{what}", self._form(self._operate), methods=["POST"]),
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._form(self._logout), methods=["POST"]),
            Route("/static/{name:path}", self._file),
        ]

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            return self._shown("problem.html", HTTPStatus.NOT_FOUND, problem="no such file", session=None)
        headers = {**_HEADERS, "Cache-Control": "max-age=300"}
        return Response(self._static[name], media_type=_FILES[name], headers=headers)

    def _page(self, show: Callable[[Request, Session], Response]) -> Callable[[Request], Any]:
        """A page for logged-in users; others are redirected to the login."""

        async def answer(request: Request) -> Response:
            session = await run_in_threadpool(self._session, request)
            if session is None:
                return _to_login(request)
            return await run_in_threadpool(self._tried, show, request, session)

        return answer

    def _form(self, do: Callable[[Request, Session, Mapping[str, str]], Response]) -> Callable[[Request], Any]:
        """A change: accepts a form from this session's own pages."""

        async def answer(request: Request) -> Response:
            session = await run_in_threadpool(self._session, request)
            if session is None:
                return _to_login(request)
            form = await _form_of(request)
            if form is None or form.get("csrf") != session.csrf:
                text = "this form is not from this session; load the page again"
                return self._shown("problem.html", HTTPStatus.FORBIDDEN, problem=text, session=session)
            return await run_in_threadpool(self._tried, lambda one, two: do(one, two, form), request, session)

        return answer

    def _tried(self, show: Callable[[Request, Session], Response], request: Request, session: Session) -> Response:
        try:
            return show(request, session)
        except UpwellError as error:
            status = STATUSES.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
            return self._shown("problem.html", status, problem=str(error), session=session)
        except Exception:  # noqa: BLE001  the boundary of the service
            _log.exception("a page failed")
            return self._shown(
                "problem.html", HTTPStatus.INTERNAL_SERVER_ERROR, problem="internal error", session=session
            )

    def _session(self, request: Request) -> Session | None:
        cookie = request.cookies.get(COOKIE, "")
        return self._sessions.session(cookie, time.time()) if cookie else None

    def _shown(self, template: str, status: HTTPStatus = HTTPStatus.OK, **values: Any) -> Response:
        html = self._templates.get_template(template).render(**values)
        return Response(html, status, dict(_HEADERS), "text/html; charset=utf-8")

    async def _login_page(self, _: Request) -> Response:
        return self._shown("login.html", problem="", session=None)

    async def _login(self, request: Request) -> Response:
        form = await _form_of(request)
        token = (form or {}).get("token", "").strip()
        try:
            user = await run_in_threadpool(self._gate.by_token, token, request.client.host if request.client else "")
        except UpwellError as error:
            return self._shown("login.html", STATUSES[type(error)], problem=str(error), session=None)
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER, headers=dict(_HEADERS))
        value = await run_in_threadpool(self._sessions.begin, user, time.time())
        response.set_cookie(
            COOKIE, value, max_age=round(SESSION_S), path="/", secure=True, httponly=True, samesite="strict"
        )
        return response

    def _logout(self, _request: Request, _session: Session, _form: Mapping[str, str]) -> Response:
        response = RedirectResponse("/login", HTTPStatus.SEE_OTHER, headers=dict(_HEADERS))
        response.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
        return response

    def _done(
        self, name: str, session: Session, path: Mapping[str, str], query: Mapping[str, Any] = _NO_QUERY, **values: Any
    ) -> Any:
        """The result of an operation of the REST interface, whose body is in `values`."""
        operation = _OPERATIONS[name]
        if not session.user.may(operation.role):
            raise NotAllowed(f"{session.user.name!r} is a {session.user.role}; this needs the role {operation.role}")
        body: BaseModel = operation.body(**values) if operation.body is not Nothing else Nothing()
        asked: BaseModel = operation.query(**query) if operation.query is not Nothing else Nothing()
        return operation.run(AdmittedCall(session.user, time.time(), path, body, asked, self._state))

    def _fleet(self, request: Request, session: Session) -> Response:
        with self._state.database.reading() as connection:
            every = devices.all_devices(connection)
        found, now = glance(every), {one["id"]: _now(one) for one in every}
        after = request.query_params.get("after", "")
        if len(after) > 32 or not after.isprintable():
            raise InvalidRequest("expected the id of a device in `after`")
        listed = self._done("listDevices", session, {}, query={"after": after, "limit": PAGE})
        under_way = [
            one
            for one in self._done("listRollouts", session, {}).rollouts
            if one.phase in ("running", "paused", "halted")
        ][:5]
        return self._shown(
            "fleet.html", session=session, glance=found, devices=listed.devices, now=now, rollouts=under_way,
            budgets=self._done("listBudgets", session, {}).budgets,
            shadows=self._done("listShadows", session, {}).shadows, after=after, next=listed.next,
        )  # fmt: skip

    def _device(self, request: Request, session: Session) -> Response:
        path = {"device": request.path_params["device"]}
        shown = self._done("showDevice", session, path)
        history = self._done("deviceHistory", session, path).history
        statistics = {"statistics": shown.statistics}
        return self._shown(
            "device.html", session=session, device=shown, points=_points(history), now=_now(statistics),
            degraded=_degraded(statistics), drift=dict.fromkeys(shown.drift or {}, "") | devices.drift_of(shown.drift),
        )  # fmt: skip

    def _ask(self, request: Request, session: Session, form: Mapping[str, str]) -> Response:
        request_id = form.get("request", "")
        if not 0 < len(request_id) <= 200 or not request_id.isprintable():
            raise InvalidRequest("expected the id of a request")
        path = {"device": request.path_params["device"]}
        asked = self._done("askDevice", session, path, request_id=request_id)
        return RedirectResponse(f"/questions/{asked.id}", HTTPStatus.SEE_OTHER, headers=dict(_HEADERS))

    def _question(self, request: Request, session: Session) -> Response:
        shown = self._done("showQuestion", session, {"question": request.path_params["question"]})
        return self._shown("question.html", session=session, question=shown)

    def _rollouts(self, _: Request, session: Session) -> Response:
        return self._shown("rollouts.html", session=session, rollouts=self._done("listRollouts", session, {}).rollouts)

    def _rollout(self, request: Request, session: Session) -> Response:
        shown = self._done("showRollout", session, {"rollout": request.path_params["rollout"]})
        return self._shown("rollout.html", session=session, rollout=shown)

    def _operate(self, request: Request, session: Session, _form: Mapping[str, str]) -> Response:
        rollout, what = request.path_params["rollout"], request.path_params["what"]
        if what not in _DONE:
            raise InvalidRequest("a roll-out can be paused, resumed or taken back")
        self._done(_DONE[what], session, {"rollout": rollout})
        return RedirectResponse(f"/rollouts/{rollout}", HTTPStatus.SEE_OTHER, headers=dict(_HEADERS))


def _to_login(request: Request) -> Response:
    """Redirect to the login. A page that refreshes only a part of itself is told to reload as a whole."""
    if "hx-request" in request.headers:
        return Response(headers={**_HEADERS, "HX-Redirect": "/login"})
    return RedirectResponse("/login", HTTPStatus.SEE_OTHER, headers=dict(_HEADERS))


async def _form_of(request: Request) -> Mapping[str, str] | None:
    """The fields of a form; None if it is invalid, too long or does not come."""
    try:
        data = await asyncio.wait_for(_form_data(request), opamp_endpoint.BODY_S)
        fields = parse_qs(data.decode(), max_num_fields=20)
    except (UnicodeDecodeError, ValueError, ClientDisconnect, asyncio.TimeoutError):
        return None
    return {name: values[0] for name, values in fields.items()}


async def _form_data(request: Request) -> bytearray:
    """A form as it came. Raises `ValueError` if it is too long."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_FORM_BYTES:
            raise ValueError("the form is too long")
    return data


def _when(unix_s: float | None) -> str:
    """A time for a `time` element; the page's script shows it in the viewer's own zone."""
    return "" if unix_s is None else datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _ms(seconds: object) -> str:
    return f"{1e3 * seconds:.0f} ms" if isinstance(seconds, (int, float)) else "–"


def _points(history: list[device_and_user_operations.HistoryEntry]) -> str:
    """Times, and between two reports the late and degraded shares in percent, as JSON for the plot."""
    times: list[float] = []
    late: list[float] = []
    degraded: list[float] = []
    for newer, older in pairwise(history):
        now, before = counts_of(newer.counts), counts_of(older.counts)
        delta = since(before if older.since_unix_s == newer.since_unix_s else None, now)
        if delta.requests > 0:
            times.append(newer.at_unix_s)
            late.append(100 * delta.late / delta.requests)
            degraded.append(100 * delta.degraded / delta.requests)
    return json.dumps([times[::-1], late[::-1], degraded[::-1]])
