"""The runtime of MLServer: the same ONNX Runtime session, one thread. MLServer runs this, nobody imports it."""

import onnxruntime
from mlserver import MLModel  # type: ignore[import-not-found]  # only within MLServer
from mlserver.codecs import NumpyCodec  # type: ignore[import-not-found]  # only within MLServer
from mlserver.types import InferenceRequest, InferenceResponse  # type: ignore[import-not-found]  # only within MLServer
from mlserver.utils import get_model_uri  # type: ignore[import-not-found]  # only within MLServer


class SessionRuntime(MLModel):  # type: ignore[misc]  # of a package that is not installed here
    """One model in one of MLServer's worker processes."""

    async def load(self) -> bool:
        """Load the file that the model's settings name."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = await get_model_uri(self.settings)
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer one request."""
        feed = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        names = [node.name for node in self._session.get_outputs()]
        results = self._session.run(names, feed)
        outputs = [NumpyCodec.encode_output(name, array) for name, array in zip(names, results)]  # noqa: B905  by the session
        return InferenceResponse(model_name=self.name, outputs=outputs)
