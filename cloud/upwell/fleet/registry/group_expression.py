"""Groups as CEL expressions over what is known of a device: `labels.site == "hamburg" && version != "0.1.0"`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from cel_expr_python import cel

from upwell.shared.config.cel_expressions import FUNCTIONS, compile_expression, no_verdict
from upwell.shared.errors import InvalidRequest

_TEXT = cel.Type.STRING
_VARIABLES = MappingProxyType(
    {"labels": cel.Type.Map(_TEXT, _TEXT), "name": _TEXT, "version": _TEXT, "os": _TEXT, "arch": _TEXT}
)
_ENVIRONMENT = cel.NewEnv(variables=dict(_VARIABLES))
_NOTHING = MappingProxyType({"labels": {}, "name": "", "version": "", "os": "", "arch": ""})


class Membership:
    """One compiled expression. If a label is missing or evaluation fails, the device is not in the group.

    Raises `InvalidRequest`, which says what is wrong with the expression and where.
    """

    def __init__(self, source: str) -> None:
        try:
            self._program = compile_expression(_ENVIRONMENT, source, _VARIABLES, FUNCTIONS | {"has"})
        except ValueError as error:
            raise InvalidRequest(f"the expression: {error}") from None
        result = self._program.eval(data=dict(_NOTHING))
        # It may need a label that is missing here, but the types are always these.
        if result.type() not in (cel.Type.BOOL, cel.Type.ERROR):
            raise InvalidRequest(f"the expression: {no_verdict(result.value())}")

    def holds(self, device: Mapping[str, object]) -> bool:
        """Whether a device with these variables is in the group."""
        result = self._program.eval(data=dict(device))
        return result.type() == cel.Type.BOOL and bool(result.value())


@lru_cache(maxsize=256)
def membership(source: str) -> Membership:
    """The compiled expression. Raises `InvalidRequest`."""
    return Membership(source)
