"""The application: every path that the service answers, and the shared state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version

from sqlalchemy import insert, select
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from upwell.fleet.api import budget_operations as budgets_api
from upwell.fleet.api import device_and_user_operations as fleet_api
from upwell.fleet.api import rollout_operations as rollouts_api
from upwell.fleet.api import shadow_operations as shadows_api
from upwell.fleet.api.operation_table import BASE, Table, openapi
from upwell.fleet.api.rest_endpoint import UserGate, problem_of, routes
from upwell.fleet.config import FleetServiceSection
from upwell.fleet.dashboard.pages import pages
from upwell.fleet.enrolment.certificate_authority import Authority, open_authority
from upwell.fleet.enrolment.enrolment import Enrolment
from upwell.fleet.opamp.opamp_endpoint import OpampEndpoint
from upwell.fleet.opamp.opamp_messages import ConnectionSettings
from upwell.fleet.opamp.poll_handler import FleetState, Instant, PollHandler
from upwell.fleet.registry.device_presence import Presence
from upwell.fleet.registry.device_questions import OpenQuestions
from upwell.fleet.registry.groups import Assignments
from upwell.fleet.storage.database import Database, all_rows
from upwell.fleet.storage.tables import DEVICES, FACTS
from upwell.fleet.uploaded_cases import CaseIntake
from upwell.fleet.users import all_users
from upwell.shared.errors import ConfigError
from upwell.shared.opamp import PATH

TABLES: Sequence[Table] = (fleet_api.TABLE, rollouts_api.TABLE, shadows_api.TABLE, budgets_api.TABLE)
"""All tables of operations; each part of the service adds its own."""


@dataclass(frozen=True)
class Fleet:
    """The service without its sockets."""

    section: FleetServiceSection
    authority: Authority
    state: FleetState

    def counts(self) -> tuple[int, int]:
        """How many devices and users there are."""
        with self.state.database.reading() as connection:
            return len(all_rows(connection, select(DEVICES.c.id))), len(all_users(connection))

    def close(self) -> None:
        """Close the database."""
        self.state.database.close()


def open_fleet(section: FleetServiceSection) -> Fleet:
    """The service's state and authority. Raises `ConfigError`."""
    authority = open_authority(section.authority, time.time())
    database = Database(section.database)
    try:
        _check_authority(database, authority, section)
    except BaseException:
        database.close()
        raise
    presence = Presence(section.poll, is_shared=database.is_shared)
    enrolment = Enrolment(authority, section.certificate_age)
    state = FleetState(database, enrolment, presence, Assignments(database), OpenQuestions(database))
    return Fleet(section, authority, state)


def _check_authority(database: Database, authority: Authority, section: FleetServiceSection) -> None:
    """Refuse to start with another authority than the other replicas: it would reject the devices that they
    admitted.
    """
    with database.writing() as connection:
        known = connection.scalar(select(FACTS.c.value).where(FACTS.c.name == "authority"))
        if known is None:
            connection.execute(insert(FACTS).values(name="authority", value=authority.fingerprint))
        elif known != authority.fingerprint:
            where = section.authority.cert
            raise ConfigError.at(
                where, "the database belongs to a fleet with another authority; expected its certificate and key",
                "fleet.authority.cert",
            )  # fmt: skip


def application(fleet: Fleet, url: str) -> Starlette:
    """The ASGI application. `url` is where devices reach the service."""
    section, state = fleet.section, fleet.state
    settings = ConnectionSettings(url + PATH, section.poll, fleet.authority.pem)
    exchange = PollHandler(state, settings, lambda: Instant(time.time(), time.monotonic()))
    gate = UserGate(state)
    document = openapi(TABLES, version("upwell"))

    async def describe(_: Request) -> Response:
        return JSONResponse(document)

    async def authority(_: Request) -> Response:
        return PlainTextResponse(fleet.authority.pem, media_type="application/x-pem-file")

    async def live(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    found: list[BaseRoute] = [
        Route(PATH, OpampEndpoint(exchange, section.max_message, section.poll).__call__, methods=["POST"]),
        Route(f"{BASE}/openapi.json", describe),
        Route("/authority.pem", authority),
        Route("/healthz", live),
    ]
    if section.cases is not None:
        found += CaseIntake(section.cases, state.database).routes()
    for table in TABLES:
        found += routes(table, state, gate)
    found += pages(state, gate)
    return Starlette(routes=found, exception_handlers={HTTPException: _unknown})


async def _unknown(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  so it was registered
    return problem_of(HTTPStatus(error.status_code), HTTPStatus(error.status_code).description, error.headers)
