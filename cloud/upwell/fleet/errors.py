"""Errors of calls to the service, beyond those of `upwell.shared.errors`."""

from __future__ import annotations

from upwell.shared.errors import Refused, UpwellError


class NotFound(UpwellError):
    """No device, group, user, token or question has that name."""


class DatabaseUnavailable(Refused):
    """The database does not answer or cannot be written, for example because its disk is full; a retry may succeed."""


class Conflict(UpwellError):
    """The current state does not allow it: the name is taken, or two things would contradict each other."""
