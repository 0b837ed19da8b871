"""The routes of Triton's extensions: configuration, statistics, repository, settings, and refusals for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from upwell.shared.errors import InvalidRequest
from upwell.shared.oip.auth.caller import check_may_use, naming_no_others
from upwell.shared.oip.dataplane import Call
from upwell.shared.oip.grpc.server.triton_extensions import RepositoryActions, permitted_statistics
from upwell.shared.oip.http.body_converters import load_object, text_of
from upwell.shared.oip.http.replies import Reply, json_reply
from upwell.shared.oip.introspection import (
    Introspection,
    config_document,
    refuse_changes,
    refuse_repository,
    refuse_shared_memory,
    statistics_document,
)

_SHARED_MEMORY = ("systemsharedmemory", "cudasharedmemory")


@dataclass(frozen=True)
class Extensions:
    """The routes beside inference; `actions` is None if there is no repository."""

    introspection: Introspection
    actions: RepositoryActions | None = None

    def route(
        self, path: tuple[str, ...], method: str, client: str
    ) -> tuple[str, Callable[[memoryview], Reply]] | None:
        """The method and handler of a path below `/v2`; None if the path belongs to no extension."""
        match path:
            case ("models", "stats"):
                return "GET", lambda _: self._statistics("", "")
            case ("models", model, "stats"):
                return "GET", lambda _: self._statistics(model, "")
            case ("models", model, "versions", version, "stats"):
                return "GET", lambda _: self._statistics(model, version)
            case ("models", model, "config"):
                return "GET", lambda _: self._config(model, "")
            case ("models", model, "versions", version, "config"):
                return "GET", lambda _: self._config(model, version)
            case ("trace", "setting") | ("logging",):
                return method if method == "POST" else "GET", lambda body: self._settings(path[0], "", body)
            case ("models", model, "trace", "setting"):
                return method if method == "POST" else "GET", lambda body: self._settings("trace", model, body)
            case ("repository", *rest):
                if self.actions is None:
                    return method if method == "POST" else "GET", lambda _: refuse_repository()
                return self._repository(self.actions, tuple(rest), client)
            case (kind, *_) if kind in _SHARED_MEMORY:
                return method if method == "POST" else "GET", lambda _: refuse_shared_memory()
        return None

    def _config(self, model: str, version: str) -> Reply:
        check_may_use(model)
        with naming_no_others(model, version):
            return json_reply(config_document(self.introspection.config(model, version)))

    def _statistics(self, model: str, version: str) -> Reply:
        return json_reply(statistics_document(permitted_statistics(self.introspection, model, version)))

    def _settings(self, kind: str, model: str, body: memoryview) -> Reply:
        if model:
            self._config(model, "")  # raises if the model does not exist
        if len(body):
            refuse_changes(load_object(body))
        settings = self.introspection.settings()
        if kind == "logging":
            return json_reply(dict(settings.log))
        return json_reply({name: list(values) for name, values in settings.trace.items()})

    @staticmethod
    def _repository(
        actions: RepositoryActions, path: tuple[str, ...], client: str
    ) -> tuple[str, Callable[[memoryview], Reply]] | None:
        call = Call(client=client)
        match path:
            case ("index",):
                return "POST", lambda body: _index(actions, body)
            case ("models", model, ("load" | "unload") as what):
                change = actions.load if what == "load" else actions.unload

                def changed(body: memoryview) -> Reply:
                    message = load_object(body) if len(body) else {}
                    change(model, _parameters(message), call)
                    return Reply(HTTPStatus.OK)

                return "POST", changed
        return None


def _index(actions: RepositoryActions, body: memoryview) -> Reply:
    message = load_object(body) if len(body) else {}
    ready = message.get("ready", False) is True
    entries = actions.index(ready=ready)
    return json_reply(
        [{"name": one.model, "version": one.version, "state": one.state.value, "reason": one.reason} for one in entries]
    )


def _parameters(message: dict[str, object]) -> dict[str, object]:
    found = message.get("parameters") or {}
    if not isinstance(found, dict):
        raise InvalidRequest("expected `parameters` to be an object")
    return {text_of("the name of a parameter", name): value for name, value in found.items()}
