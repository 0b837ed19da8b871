"""Delivery of cases through a fleet service: to it, or to object storage at an address that it signs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

from upwell.edge.case_collection.case_delivery import CaseAway, CaseRefused, Put
from upwell.shared.config.addresses import parse_endpoint
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.files import parse_json
from upwell.shared.oip.grpc.client.client import RemoteError
from upwell.shared.oip.http.client.exchange import HttpsCaller, Received
from upwell.shared.opamp import CASES_PATH, case_upload_s

Service = Callable[[], HttpsCaller | None]
"""Returns the current caller of the service, as this device; None while it cannot be called."""

_CALL_S = 20.0
_MAX_ANSWER_BYTES = 64 << 10
_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+\?[A-Za-z0-9%&=._~-]+")
_S3_CODE = re.compile(rb"<Code>([A-Za-z]{1,64})</Code>")


class FleetHome:
    """Delivery to the fleet service itself."""

    where = "the fleet service"

    def __init__(self, service: Service) -> None:
        self._service = service

    def ready(self, id: str, size_bytes: int) -> Put:  # noqa: ARG002  every home is asked so
        """The function that sends it. Raises `CaseAway` while the service cannot be reached."""
        return partial(_put_to_fleet, _heard(self._service), id)


class StorageHome:
    """Object storage, at addresses that the fleet service signs. Only addresses below `storage` are called, so that the
    service cannot redirect cases elsewhere. Raises `ConfigError` for a wrong address or wrong files."""

    def __init__(self, storage: str, ca: TlsFiles, service: Service) -> None:
        address = parse_endpoint(storage)
        self.where = f"https://{address.authority}{address.prefix}"
        self._caller = HttpsCaller(self.where, ClientSecurity(ca))
        self._service = service

    def ready(self, id: str, size_bytes: int) -> Put:
        """Get a signed address. Raises `CaseAway` and `CaseRefused`."""
        path = f"{CASES_PATH}/{id}/url?size_bytes={size_bytes}"
        received = _call(_heard(self._service), "POST", path, b"", _CALL_S)
        if received.status != HTTPStatus.OK:
            raise _fleet_error(received)
        try:
            url = str(parse_json(received.body)["url"])
        except (ValueError, KeyError, TypeError):
            raise CaseAway("the fleet service's answer has no address") from None
        target = url.removeprefix(self.where)
        if target == url or _PATH.fullmatch(target) is None:
            # The address is not shown: whoever has it may use it.
            raise CaseAway(f"the fleet service returned an address that is not below {self.where} (`storage`)")
        return partial(self._put, target)

    def _put(self, target: str, data: bytes) -> None:
        received = _call(self._caller, "PUT", target, data, case_upload_s(len(data)))
        if received.status == HTTPStatus.OK:
            return
        found = _S3_CODE.search(received.body)  # the rest of the body may contain the signature
        code = "" if found is None else found[1].decode()
        text = f"it answered {received.status}{' ' if code else ''}{code}"
        if received.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or code == "EntityTooLarge":
            raise CaseRefused(text)
        if received.status < HTTPStatus.BAD_REQUEST:
            text += ", and redirects are not followed"
        raise CaseAway(text, received.retry_after_s)


def _put_to_fleet(caller: HttpsCaller, id: str, data: bytes) -> None:
    received = _call(caller, "PUT", f"{CASES_PATH}/{id}", data, case_upload_s(len(data)))
    if received.status != HTTPStatus.OK:
        raise _fleet_error(received)


def _heard(service: Service) -> HttpsCaller:
    try:
        caller = service()
    except ConfigError as error:
        raise CaseAway(str(error)) from None
    if caller is None:
        raise CaseAway("the fleet service cannot be reached, or the device has not enrolled yet", is_said=True)
    return caller


def _call(caller: HttpsCaller, method: str, path: str, body: bytes, timeout_s: float) -> Received:
    try:
        return caller.call(method, path, body=body, timeout_s=timeout_s, max_bytes=_MAX_ANSWER_BYTES)
    except ConfigError as error:
        raise CaseAway(str(error), is_unsent=True) from None
    except RemoteError as error:
        raise CaseAway(str(error), error.retry_after_s, is_unsent=error.is_unsent) from None


def _fleet_error(received: Received) -> CaseAway | CaseRefused:
    try:
        told = str(parse_json(received.body)["detail"])[:200]
    except (ValueError, KeyError, TypeError):
        told = "no reason given"
    text = f"the fleet service answered {received.status}: {told if told.isprintable() else 'no reason given'}"
    if received.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return CaseRefused(text)
    return CaseAway(text, received.retry_after_s)
