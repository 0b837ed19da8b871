"""The operations on fleet budgets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from upwell.fleet.api.device_and_user_operations import Text
from upwell.fleet.api.operation_table import AdmittedCall, Given, Nothing, Operation, Table, Taken
from upwell.fleet.budget import budget_store
from upwell.fleet.budget.budget_store import BudgetGoal, BudgetSpec
from upwell.fleet.registry import devices, groups
from upwell.fleet.users import check_name
from upwell.shared.errors import InvalidRequest

Fraction = Annotated[float, Field(ge=0, le=1)]
Point = Annotated[list[Fraction], Field(min_length=2, max_length=2)]
Periods = Literal["s", "min", "h", "day", "week", "month"]


class UplinkBody(Taken):
    """A number of bytes in each calendar period (UTC)."""

    size_bytes: Annotated[int, Field(ge=0, le=2**60)]
    period: Periods


class BudgetBody(Taken):
    """The common limit of some devices: one of `cloud_share`, `uplink` and `max_risk`.

    `curves` hold pairs of a share and its risk, ascending from share 0, for models whose calibration the devices do
    not report.
    """

    group: Text | None = None
    where: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = None
    cloud_share: Fraction | None = None
    uplink: UplinkBody | None = None
    max_risk: Fraction | None = None
    curves: dict[Text, Annotated[list[Point], Field(min_length=1, max_length=64)]] = Field(
        default_factory=dict, max_length=64
    )

    @model_validator(mode="after")
    def _one_each(self) -> BudgetBody:
        if (self.group is None) == (self.where is None):
            raise ValueError("expected one of `group` and `where`")
        if sum(one is not None for one in (self.cloud_share, self.uplink, self.max_risk)) != 1:
            raise ValueError("expected one of `cloud_share`, `uplink` and `max_risk`")
        return self

    @property
    def goal(self) -> BudgetGoal:
        """The goal as the budget store takes it."""
        if self.uplink is not None:
            return BudgetGoal("uplink", float(self.uplink.size_bytes), self.uplink.period)
        if self.cloud_share is not None:
            return BudgetGoal("cloud_share", self.cloud_share)
        return BudgetGoal("max_risk", self.max_risk or 0.0)


class BudgetEntry(Given):
    """A budget. `result` is what the shares amount to by the devices' own reports: null until they are computed."""

    name: str
    group: str | None
    expression: str
    goal: dict[str, Any]
    spent_bytes: int
    created_by: str
    created_unix_s: float
    solved_unix_s: float | None
    result: dict[str, Any] | None


class BudgetMemberEntry(Given):
    """A device of a budget, and by model the share of requests that it may offload."""

    device: str
    name: str
    shares: dict[str, float]


class BudgetDetails(BudgetEntry):
    """A budget with its devices."""

    curves: dict[str, Any]
    devices: list[BudgetMemberEntry]


class Budgets(Given):
    """All budgets."""

    budgets: list[BudgetEntry]


def _list(call: AdmittedCall[Nothing, Nothing]) -> Budgets:
    with call.state.database.reading() as connection:
        return Budgets(budgets=[BudgetEntry(**one) for one in budget_store.all_budgets(connection)])


def _show(call: AdmittedCall[Nothing, Nothing]) -> BudgetDetails:
    name = call.path["budget"]
    with call.state.database.reading() as connection:
        budget, members = budget_store.find_budget(connection, name), budget_store.members_of(connection, name)
        names = {one["id"]: one["name"] for one in devices.all_devices(connection)}
    entries = [
        BudgetMemberEntry(device=one["device_id"], name=names.get(one["device_id"], ""), shares=one["shares"])
        for one in members
    ]
    return BudgetDetails(**budget, devices=entries)


def _put(call: AdmittedCall[BudgetBody, Nothing]) -> None:
    body, name = call.body, call.path["budget"]
    check_name(name)
    for model, points in body.curves.items():
        if points[0][0] != 0.0:
            raise InvalidRequest(f"the curve of {model!r} begins at share {points[0][0]}; expected 0, the device alone")
    with call.state.database.writing() as connection:
        where = body.where or groups.find_group(connection, str(body.group))["expression"]
        curves = {model: [(share, risk) for share, risk in points] for model, points in body.curves.items()}
        budget_store.put_budget(connection, call.actor, name, BudgetSpec(where, body.group, body.goal, curves))


def _drop(call: AdmittedCall[Nothing, Nothing]) -> None:
    with call.state.database.writing() as connection:
        budget_store.drop_budget(connection, call.actor, call.path["budget"])


TABLE: Table = (
    Operation("GET", "/budgets", "listBudgets", "The budgets", "viewer", _list, Budgets),
    Operation("GET", "/budgets/{budget}", "showBudget", "One budget and its devices", "viewer", _show, BudgetDetails),
    Operation("PUT", "/budgets/{budget}", "putBudget", "Set a budget or change it", "operator", _put,
              body=BudgetBody),
    Operation("DELETE", "/budgets/{budget}", "dropBudget", "Delete a budget", "operator", _drop),
)  # fmt: skip
"""The operations of this module."""
