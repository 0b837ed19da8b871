"""What can be wrong with a call to the service, beside what `upwell.shared.errors` knows."""

from __future__ import annotations

from upwell.shared.errors import Refused, UpwellError


class NotFound(UpwellError):
    """No device, group, user, token or question of that name."""


class DatabaseUnavailable(Refused):
    """The database does not answer, or takes nothing, as where its disk is full; it may again later."""


class Conflict(UpwellError):
    """It cannot be done as things stand: the name is taken, or two things would contradict each other."""
