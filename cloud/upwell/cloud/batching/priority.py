"""The request parameter `priority`, as Triton names it."""

from __future__ import annotations

from collections.abc import Mapping

from upwell.cloud.batching.request import DEFAULT_PRIORITY
from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.dataplane import Parameter

_NAME = "priority"


def priority_of(parameters: Mapping[str, Parameter]) -> int:
    """How urgent a request is: from 1, the most urgent; 0, or no such parameter, is the default level.

    Raises `InvalidRequest` for what is not a whole number from 0.
    """
    value = parameters.get(_NAME, 0)
    if type(value) is not int or value < 0:
        raise InvalidRequest(f"the parameter {_NAME!r} is a whole number from 0, got {value!r}")
    return value or DEFAULT_PRIORITY
