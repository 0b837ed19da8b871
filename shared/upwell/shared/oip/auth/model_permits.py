"""Checks which models a caller may use, as a `Dataplane` in front of another, on servers with a `tokens.yaml`."""

from __future__ import annotations

from upwell.shared.oip.auth.caller import check_may_use, naming_no_others
from upwell.shared.oip.dataplane import Call, DataplaneLayer, InferRequest, InferResponse, ModelMetadata


class Permits(DataplaneLayer):
    """Raises `NotAllowed` for models that the current caller may not use; passes everything else through.

    The reply is the same whether the model exists or not, so it does not reveal what is served.
    """

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """See `Dataplane.infer`."""
        check_may_use(request.model)
        with naming_no_others(request.model, request.version):
            return self._dataplane.infer(request, call)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """See `Dataplane.metadata`."""
        check_may_use(model)
        with naming_no_others(model, version):
            return self._dataplane.metadata(model, version)

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """See `Dataplane.ready`."""
        if model is not None:
            check_may_use(model)
        return self._dataplane.ready(model, version)
