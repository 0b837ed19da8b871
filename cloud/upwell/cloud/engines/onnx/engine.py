"""ONNX Runtime: the default engine, on the CPU or on an accelerator through an execution provider."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from upwell.cloud.engines.base import ModelSettings
from upwell.cloud.engines.batches import check_batch, zero_batch
from upwell.cloud.engines.error_text import onnxruntime_reason
from upwell.cloud.engines.onnx.sessions import open_session
from upwell.cloud.engines.onnxruntime_import import InvalidArgument, onnxruntime
from upwell.shared.errors import InvalidRequest, ModelFailed
from upwell.shared.formats.onnx.file import BadOnnxFile, foreign_operators
from upwell.shared.formats.onnx.tensor_types import DATATYPES, UnsupportedTensor, bytes_of, spec_of, text_of
from upwell.shared.tensors import Array, TensorSpec

_EXCHANGEABLE = tuple(kind for kind, datatype in DATATYPES.items() if datatype != "BF16")
"""BF16 has no numpy type in ONNX Runtime's `run`."""
_NAMED = 5


class OnnxEngine:
    """One ONNX Runtime session shared by all instances of a model.

    `InferenceSession.run` is thread-safe, and a second session would need memory for the weights again.
    With `threads: 1` a run stays in its caller's thread; with more, the instances share one pool.
    No custom-operator library is ever loaded.
    """

    file_name: ClassVar[str] = "model.onnx"
    platform: ClassVar[str] = "onnxruntime_onnx"
    buckets: tuple[int, ...] = ()

    def __init__(self, session: Any) -> None:
        self.version = f"onnxruntime {onnxruntime.__version__}"
        self.inputs = tuple(_spec(node, "input") for node in session.get_inputs())
        self.outputs = tuple(_spec(node, "output") for node in session.get_outputs())
        self._output_names = [spec.name for spec in self.outputs]
        self._texts_in = [spec.name for spec in self.inputs if spec.datatype == "BYTES"]
        self._texts_out = [spec.name for spec in self.outputs if spec.datatype == "BYTES"]
        self._session = session

    @classmethod
    def load(cls, name: str, path: Path, settings: ModelSettings) -> OnnxEngine:
        """Load `path`. Raises `ModelFailed` for a file or device that ONNX Runtime cannot serve here."""
        _check_operators(path)
        session = open_session(name, path, settings)
        try:
            engine = cls(session)
        except UnicodeDecodeError:
            raise ModelFailed(f"{path.name} has an input or output whose name is not UTF-8") from None
        if not engine.outputs:
            raise ModelFailed(f"{path.name} has no outputs")
        return engine

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Run the session. See `Engine.run`."""
        check_batch(batch, self.inputs)
        session = self._session
        if session is None:
            raise ModelFailed("the model is closed")
        feed = {**batch, **{name: text_of(name, batch[name]) for name in self._texts_in}} if self._texts_in else batch
        try:
            results = session.run(self._output_names, feed)
        except InvalidArgument as error:  # shared dimensions of two inputs, which their specs cannot express
            raise InvalidRequest(f"the model rejected the inputs: {onnxruntime_reason(error)}") from error
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            raise ModelFailed(f"ONNX Runtime failed: {onnxruntime_reason(error)}") from error
        answer = dict(zip(self._output_names, results, strict=True))
        for name in self._texts_out:
            answer[name] = bytes_of(answer[name])
        return answer

    def warm_up(self, rows: int) -> None:
        """Run zeros once, so that memory and kernels are ready. See `Engine.warm_up`."""
        batch = zero_batch(self.inputs, rows)
        if batch is not None:
            self.run(batch)

    def close(self) -> None:
        """Free the session."""
        self._session = None


def _check_operators(path: Path) -> None:
    """Raise `ModelFailed` for foreign operators, and for a file that is not ONNX."""
    try:
        foreign = foreign_operators(path)
    except BadOnnxFile as error:
        raise ModelFailed(f"ONNX Runtime cannot load {path.name}: {error}") from None
    except OSError as error:
        raise ModelFailed(f"{path.name} cannot be read: {error.strerror}") from error
    if foreign:
        more = f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
        raise ModelFailed(
            f"{path.name} uses {', '.join(foreign[:_NAMED])}{more}, which neither ONNX nor ONNX Runtime defines; "
            "operator libraries and compiled programs are never loaded; export it with standard operators"
        )


def _spec(node: Any, side: str) -> TensorSpec:
    """The specification of a session's input or output; symbolic dimensions are dynamic."""
    if node.type not in _EXCHANGEABLE:
        raise ModelFailed(
            f"{side} {node.name!r} is {node.type}, which ONNX Runtime's Python API cannot exchange; "
            f"export it as one of {', '.join(_EXCHANGEABLE)}"
        )
    try:
        return spec_of(node)
    except UnsupportedTensor as error:
        raise ModelFailed(f"{side} {error}") from None
