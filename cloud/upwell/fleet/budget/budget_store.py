"""Budgets in the database: set by users, and shared again as devices report their demand and their curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timezone
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from upwell.fleet.budget.goal_allocation import Curve, Demand, FleetGoal, envelope, share_out, worth_telling
from upwell.fleet.errors import Conflict
from upwell.fleet.registry.devices import Stored, all_devices, variables_of
from upwell.fleet.registry.groups import membership
from upwell.fleet.storage.database import Row, all_rows, one_row, the_row
from upwell.fleet.storage.tables import BUDGET_MEMBERS, BUDGETS, DEVICES, GROUPS
from upwell.fleet.users import Actor, record_audit
from upwell.shared.errors import InvalidRequest
from upwell.shared.opamp import ModelDemand, read_demand
from upwell.shared.routing.estimators.budget_ledger import period_bounds
from upwell.shared.routing.policy.settings import Period

Points = Sequence[tuple[float, float]]
"""(share, risk) points of a model."""

_STEPS = 20
ALIKE = envelope([(step / _STEPS, 0.1 * (1 - step / _STEPS) ** 2) for step in range(_STEPS + 1)])
"""The curve of a model without a known one. Every request gains less than the one before, so devices of which nothing
is known get equal shares.
"""

_MOST_BYTES = 1 << 62
"""The largest count of bytes that is stored; databases take no more than 63 bits."""

_DECIMALS = 1000.0
_MORE = 1.25


@dataclass(frozen=True)
class BudgetGoal:
    """The common limit of some devices: `cloud_share` of all requests, `uplink` bytes in each period (UTC), or
    `max_risk`, the share of all requests that may be kept and wrong where the cloud is right.
    """

    quantity: Literal["cloud_share", "uplink", "max_risk"]
    amount: float
    period: Period | None = None


@dataclass(frozen=True)
class BudgetSpec:
    """A budget as a user set it: its devices, its goal, and the curves of models that devices do not know."""

    expression: str
    group: str | None
    goal: BudgetGoal
    curves: Mapping[str, Points]


@dataclass
class _Member:
    """A device of a budget: the shares sent to it by model, and its byte count when last checked."""

    device: Stored
    told: Mapping[str, float]
    since_unix_s: float
    uplink_bytes: int


def put_budget(connection: Connection, actor: Actor, name: str, spec: BudgetSpec) -> None:
    """Set or change a budget; it is shared within seconds. Raises `InvalidRequest`, and `Conflict`."""
    membership(spec.expression)
    for model, points in spec.curves.items():
        try:
            envelope(points)
        except ValueError as error:
            raise InvalidRequest(f"the curve of {model!r}: {error}") from None
    goal = asdict(spec.goal)
    former = one_row(connection, select(BUDGETS).where(BUDGETS.c.name == name))
    anew = {"created_by": actor.name, "created_unix_s": actor.now_unix_s, "period_start_unix_s": None, "spent_bytes": 0}
    values = {
        "group": spec.group, "expression": spec.expression, "goal": goal, "solved_unix_s": None,
        "curves": {model: [list(point) for point in points] for model, points in spec.curves.items()},
        **(anew if former is None or former["goal"] != goal else {}),
    }  # fmt: skip
    if former is None:
        try:
            connection.execute(insert(BUDGETS).values(name=name, **values))
        except IntegrityError:
            raise Conflict(f"another operator has just set budget {name!r}") from None
    else:
        connection.execute(update(BUDGETS).where(BUDGETS.c.name == name).values(**values))
    record_audit(connection, actor, "put budget", name, {"expression": spec.expression, "goal": goal})


def drop_budget(connection: Connection, actor: Actor, name: str) -> None:
    """Remove a budget. Its devices follow their policies and the remaining budgets. Raises `NotFound`."""
    the_row(connection, select(BUDGETS).where(BUDGETS.c.name == name).with_for_update(), f"budget {name!r}")
    members = [one["device_id"] for one in members_of(connection, name)]
    connection.execute(delete(BUDGET_MEMBERS).where(BUDGET_MEMBERS.c.budget == name))
    connection.execute(delete(BUDGETS).where(BUDGETS.c.name == name))
    _tell(connection, members)
    record_audit(connection, actor, "drop budget", name)


def all_budgets(connection: Connection) -> Sequence[Row]:
    """The budgets by name."""
    return all_rows(connection, select(BUDGETS).order_by(BUDGETS.c.name))


def find_budget(connection: Connection, name: str) -> Row:
    """One budget. Raises `NotFound`."""
    return the_row(connection, select(BUDGETS).where(BUDGETS.c.name == name), f"budget {name!r}")


def members_of(connection: Connection, name: str) -> Sequence[Row]:
    """The devices of a budget: `device_id` and `shares`, what each may offload by model."""
    chosen = select(BUDGET_MEMBERS).where(BUDGET_MEMBERS.c.budget == name)
    return all_rows(connection, chosen.order_by(BUDGET_MEMBERS.c.device_id))


def solve_all(connection: Connection, now_unix_s: float, every_s: float) -> None:
    """Share every budget that was not shared for `every_s` seconds, by the last reports of its devices."""
    locked = all_rows(connection, select(BUDGETS).order_by(BUDGETS.c.name).with_for_update())  # replicas take turns
    due = [
        one for one in locked
        if one["solved_unix_s"] is None or not 0 <= now_unix_s - one["solved_unix_s"] < every_s
    ]  # fmt: skip
    if not due:
        return
    devices = [one for one in all_devices(connection) if one["revoked_unix_s"] is None]
    touched: set[str] = set()
    for budget in due:
        touched |= _solve(connection, budget, devices, now_unix_s)
    _tell(connection, touched)


def _solve(connection: Connection, budget: Row, devices: Sequence[Stored], now_unix_s: float) -> set[str]:
    """Share one budget; return the ids of the devices whose shares have changed."""
    name, goal = budget["name"], BudgetGoal(**budget["goal"])
    group = one_row(connection, select(GROUPS).where(GROUPS.c.name == budget["group"]))
    expression = budget["expression"] if group is None else group["expression"]
    holds = membership(expression).holds
    known = {one["device_id"]: one for one in members_of(connection, name)}
    members = [_member(one, known.get(one["id"])) for one in devices if holds(variables_of(one))]
    came = sum(_came(one) for one in members if one.device["id"] in known)
    period_start_unix_s, spent, goal_now = _goal_now(budget, goal, came, now_unix_s)
    demands = _demands(members, budget["curves"], in_bytes=goal.quantity == "uplink")
    allocation = share_out([demand for _, _, demand in demands], goal_now)
    shares: dict[str, dict[str, float]] = {}
    for device_id, model, demand in demands:
        shares.setdefault(device_id, {})[model] = _rounded(allocation.shares[demand.device], goal)
    touched = _write_members(connection, name, members, known, shares)
    result = {
        "cloud_share": allocation.cloud_share, "bytes_per_s": allocation.bytes_per_s, "risk": allocation.risk,
        "is_met": allocation.is_met, "devices": len(members), "with_demand": len(shares),
    }  # fmt: skip
    connection.execute(
        update(BUDGETS).where(BUDGETS.c.name == name).values(
            expression=expression, period_start_unix_s=period_start_unix_s, spent_bytes=spent,
            solved_unix_s=now_unix_s, result=result,
        )
    )  # fmt: skip
    return touched


def _member(device: Stored, row: Row | None) -> _Member:
    if row is None:
        return _Member(device, {}, 0.0, 0)
    return _Member(device, row["shares"], row["since_unix_s"], row["uplink_bytes"])


def _counted(device: Stored) -> tuple[float, int]:
    """The start of a device's count, and the bytes it has sent since."""
    statistics = device["statistics"] or {}
    sent = statistics.get("counts", {}).get("uplink_bytes", 0)
    return float(statistics.get("since_unix_s", 0.0)), sent if type(sent) is int and 0 <= sent <= _MOST_BYTES else 0


def _came(member: _Member) -> int:
    """Bytes that a device sent since the last check. Its count restarts with each process and release."""
    since_unix_s, sent = _counted(member.device)
    return max(0, sent - member.uplink_bytes) if since_unix_s == member.since_unix_s else sent


def _goal_now(budget: Row, goal: BudgetGoal, came_bytes: int, now_unix_s: float) -> tuple[float | None, int, FleetGoal]:
    """The start of the current period, the bytes spent in it, and the goal for the rest of it.

    Of the period in which a budget was set, only the remaining part counts.
    """
    if goal.quantity == "cloud_share":
        return None, 0, FleetGoal(cloud_share=goal.amount)
    if goal.quantity == "max_risk":
        return None, 0, FleetGoal(max_risk=goal.amount)
    start, end = period_bounds(goal.period or "month", now_unix_s, timezone.utc)
    spent = (budget["spent_bytes"] if budget["period_start_unix_s"] in (None, start) else 0) + came_bytes
    spent = min(spent, _MOST_BYTES)
    part = (end - max(start, min(budget["created_unix_s"], end - 1))) / (end - start)
    left = max(0.0, goal.amount * part - spent)
    return start, spent, FleetGoal(bytes_per_s=left / max(1.0, end - now_unix_s))


def _demands(members: Sequence[_Member], curves: Mapping[str, Any], *, in_bytes: bool) -> list[tuple[str, str, Demand]]:
    """(device, model, demand) of all devices that reported their demand. If a device does not know the size of its
    messages, it gets the average of the others; if none knows, nothing is shared in bytes.
    """
    said = [
        (one, model, found)
        for one in members
        for model, value in ((one.device["statistics"] or {}).get("demand") or {}).items()
        if (found := read_demand(value)) is not None
    ]
    sizes: dict[str, list[float]] = {}
    for _, model, found in said:
        if found.request_bytes > 0:
            sizes.setdefault(model, []).append(found.request_bytes)
    every = [size for known in sizes.values() for size in known]
    result = []
    for member, model, found in said:
        alike = sizes.get(model) or every
        size = found.request_bytes or (sum(alike) / len(alike) if alike else 0.0)
        if in_bytes and not size:
            continue
        device_id = member.device["id"]
        demand = Demand(
            f"{device_id}/{model}", _curve(found, curves.get(model)), found.requests_per_s, size,
            min(1.0, found.wanted * _MORE + 0.02), _link_bytes_per_s(member.device),
        )  # fmt: skip
        result.append((device_id, model, demand))
    return result


def _curve(found: ModelDemand, given: Any) -> Curve:
    """The curve from the device's own calibration, or else from the budget, or else the default for all."""
    for points in (list(zip(found.shares, found.risks, strict=True)), [(share, risk) for share, risk in given or ()]):
        try:
            return envelope(points)
        except ValueError:
            continue
    return ALIKE


def _link_bytes_per_s(device: Stored) -> float:
    """The device's estimate of its uplink; infinite if it has none."""
    now = (device["statistics"] or {}).get("counts", {}).get("now", {})
    found = now.get("up_bytes_per_s") if isinstance(now, dict) else None
    return float(found) if isinstance(found, (int, float)) and found > 0 else math.inf


def _rounded(share: float, goal: BudgetGoal) -> float:
    """To a thousandth, rounded so that the goal is kept."""
    to = math.ceil if goal.quantity == "max_risk" else math.floor
    return min(1.0, to(share * _DECIMALS + (-1e-9 if to is math.ceil else 1e-9)) / _DECIMALS)


def _write_members(
    connection: Connection,
    name: str,
    members: Sequence[_Member],
    known: Mapping[str, Row],
    shares: Mapping[str, Mapping[str, float]],
) -> set[str]:
    """Write the devices of a budget and the shares sent to them; return those whose shares have changed."""
    touched = set(known) - {one.device["id"] for one in members}
    for device_id in touched:
        of_it = (BUDGET_MEMBERS.c.budget == name) & (BUDGET_MEMBERS.c.device_id == device_id)
        connection.execute(delete(BUDGET_MEMBERS).where(of_it))
    added, changed = [], []
    for one in members:
        device_id = one.device["id"]
        now = shares.get(device_id, one.told)
        told = {model: share for model, share in one.told.items() if model in now}
        told |= worth_telling(one.told, now)
        since_unix_s, sent = _counted(one.device)
        row = {"device_id": device_id, "shares": told, "since_unix_s": since_unix_s, "uplink_bytes": sent}
        if device_id not in known:
            added.append({**row, "budget": name})
        elif (told, since_unix_s, sent) != (one.told, one.since_unix_s, one.uplink_bytes):
            changed.append({f"new_{key}": value for key, value in row.items()})
        if told != one.told or device_id not in known:
            touched.add(device_id)
    if added:
        connection.execute(insert(BUDGET_MEMBERS), added)
    if changed:
        statement = (
            BUDGET_MEMBERS.update()
            .where(BUDGET_MEMBERS.c.budget == name, BUDGET_MEMBERS.c.device_id == bindparam("new_device_id"))
            .values({key: bindparam(f"new_{key}") for key in ("shares", "since_unix_s", "uplink_bytes")})
        )
        connection.execute(statement, changed)
    return touched


def _tell(connection: Connection, device_ids: Sequence[str] | set[str]) -> None:
    """Send a device the least share of its budgets for each model; null if it is in none."""
    values = []
    for device_id in sorted(device_ids):
        rows = all_rows(connection, select(BUDGET_MEMBERS.c.shares).where(BUDGET_MEMBERS.c.device_id == device_id))
        least: dict[str, float] = {}
        for row in rows:
            for model, share in row["shares"].items():
                least[model] = min(share, least.get(model, 1.0))
        values.append({"the_id": device_id, "least": dict(sorted(least.items())) if rows else None})
    if values:
        statement = DEVICES.update().where(DEVICES.c.id == bindparam("the_id")).values(shares=bindparam("least"))
        connection.execute(statement, values)
