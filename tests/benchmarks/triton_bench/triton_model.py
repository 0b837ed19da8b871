"""The model of Triton's Python backend: the same ONNX Runtime session. Triton runs this, nobody imports it."""

import json
import sys
from pathlib import Path

# Triton's interpreter knows neither virtual environments nor PYTHONPATH.
sys.path.insert(0, Path(__file__).with_name("packages.txt").read_text())

import onnxruntime
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # only within Triton


class TritonPythonModel:
    """One instance, in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the file that the configuration names."""
        config = json.loads(args["model_config"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = config["parameters"]["file"]["string_value"]
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._inputs = [node.name for node in self._session.get_inputs()]
        self._outputs = [node.name for node in self._session.get_outputs()]

    def execute(self, requests: list) -> list:  # type: ignore[type-arg]  # the backend's own types
        """Answer each request alone: neither side batches."""
        answers = []
        for request in requests:
            feed = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
            results = self._session.run(self._outputs, feed)
            tensors = [pb_utils.Tensor(name, array) for name, array in zip(self._outputs, results)]  # noqa: B905  by the session
            answers.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return answers
