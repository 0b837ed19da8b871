"""What is peculiar to torch: classes named by the operator, weights from safetensors alone."""

import os
import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from upwell.cloud.engines.base import DeviceLost
from upwell.cloud.engines.model_settings import ModelSettings
from upwell.cloud.engines.safetensors_weights import refuse_misfits
from upwell.cloud.engines.torch import networks
from upwell.cloud.engines.torch.demo import LargeNet
from upwell.cloud.engines.torch.torch_engine import TorchEngine
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import Array

MODULE = """
import torch

X = (("x", "FP32", (-1, 2)),)
Y = (("y", "FP32", (-1, 2)),)

class Scale(torch.nn.Module):
    inputs, outputs = X, Y
    def __init__(self, size=1, bias=False):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.zeros(size))
        if bias:
            self.bias = torch.nn.Parameter(torch.zeros(1))
    def forward(self, x):
        return x * self.factor

class Two(Scale):
    inputs = (("a", "FP32", (-1, 2)), ("b", "INT64", (-1,)))
    outputs = (("sum", "FP32", (-1, 2)), ("count", "INT64", (-1,)))
    def forward(self, a, b):
        return a + b[:, None] * self.factor, b + 1

class Brain(Scale):
    inputs, outputs = (("x", "BF16", (-1, 2)),), (("y", "BF16", (-1, 2)),)
    def forward(self, x):
        return x * 2

class Threads(Scale):
    outputs = (("y", "INT64", (1,)),)
    def forward(self, x):
        return torch.tensor([torch.get_num_threads()])

class WrongCount(Scale):
    def forward(self, x):
        return x, x

class WrongType(Scale):
    def forward(self, x):
        return x.double()

class Failing(Scale):
    def forward(self, x):
        raise ValueError("the first line\\nthe second line")

class Reading(Scale):
    def forward(self, x):
        open("/srv/secret/words.txt")

class Lost(Scale):
    def forward(self, x):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\\nsee /srv/secret/log")

class Greedy(Scale):
    def forward(self, x):
        return torch.empty(1 << 50, device=x.device) if len(x) > 1 else x * self.factor

class Tied(Scale):
    def __init__(self):
        super().__init__()
        self.again, self.own = self.factor, torch.nn.Parameter(torch.zeros(1))
    def forward(self, x):
        return x * self.factor + self.again + self.own

class NeedsArgument(Scale):
    def __init__(self, classes):
        super().__init__()

class NoSpecs(torch.nn.Module):
    pass

class Twice(Scale):
    outputs = (("y", "FP32", (-1, 2)), ("y", "FP32", (-1, 2)))

class Negative(Scale):
    inputs = (("x", "FP32", (-2, 2)),)

class Lazy(Scale):
    def __init__(self):
        super().__init__()
        self.late = torch.nn.LazyLinear(2)

class Unborn(Scale):
    def __init__(self):
        self.factor = 1

class Stubborn(Scale):
    def _load_from_state_dict(self, *arguments):
        raise ValueError("not mine")

class Named(Scale):
    def forward(self, x):
        return {"y": x}

class Inner(Scale):
    def forward(self, x):
        return (x, (x,), None)

class Strings(Scale):
    inputs = (("x", "BYTES", (-1,)),)

class NoModule:
    pass
"""

FACTOR = {"factor": np.array([2.0], np.float32)}
X = np.array([[1, 2], [3, 4]], np.float32)


@pytest.fixture(autouse=True)
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "classes_of_torch_tests.py").write_text(MODULE)
    (tmp_path / "broken_module_of_torch_tests.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)


def load(path: Path, name: str, weights: Mapping[str, Array] = FACTOR, **settings: object) -> TorchEngine:
    save_file(dict(weights), path / "model.safetensors")
    dotted = name if "." in name or not name else f"classes_of_torch_tests.{name}"
    return TorchEngine.load("m", path / "model.safetensors", ModelSettings("torch", torch_class=dotted, **settings))  # type: ignore[arg-type]  # single keys of the settings


def test_several_inputs_and_outputs_go_in_the_declared_order(tmp_path: Path) -> None:
    outputs = load(tmp_path, "Two").run({"b": np.array([5, 6], np.int64), "a": X})
    assert outputs["count"].tolist() == [6, 7]
    np.testing.assert_array_equal(outputs["sum"], X + np.array([[10], [12]]))


def test_bf16_passes(tmp_path: Path) -> None:
    x = X.astype(ml_dtypes.bfloat16)
    answer = load(tmp_path, "Brain").run({"x": x})["y"]
    assert answer.dtype == x.dtype
    np.testing.assert_array_equal(answer, x * 2)


def test_an_error_after_which_the_device_is_lost_counts_on_a_device_alone(tmp_path: Path) -> None:
    with pytest.raises(DeviceLost, match=r"^the network failed: CUDA error: an illegal memory access was encountered$"):
        load(tmp_path, "Lost", device="meta").run({"x": X})
    with pytest.raises(ModelFailed) as caught:
        load(tmp_path, "Lost").run({"x": X})
    assert not isinstance(caught.value, DeviceLost)


def test_arguments_reach_the_class(tmp_path: Path) -> None:
    weights = {"factor": np.array([2.0, 3.0], np.float32)}
    answer = load(tmp_path, "Scale", weights, arguments={"size": 2}).run({"x": X})["y"]
    np.testing.assert_array_equal(answer, X * [2, 3])


def test_threads_hold_in_whatever_thread_runs(tmp_path: Path) -> None:
    engine = load(tmp_path, "Threads", threads=1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.set_num_threads, 2).result()
        assert pool.submit(engine.run, {"x": X}).result()["y"].tolist() == [1]


def test_without_a_class_the_entry_point_of_the_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelFailed, match=r"write `class: package\.module\.Class` under models\.m in cloud\.yaml"):
        load(tmp_path, "")
    entry = EntryPoint("m", "classes_of_torch_tests:Scale", networks.CLASSES)
    monkeypatch.setattr(
        networks,
        "entry_points",
        lambda **wanted: [entry] if wanted == {"group": entry.group, "name": entry.name} else [],
    )
    np.testing.assert_array_equal(load(tmp_path, "").run({"x": X})["y"], X * 2)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "no_such_module_at_all.Net",
            "No module named 'no_such_module_at_all'; install it or put its folder on PYTHONPATH",
        ),
        ("broken_module_of_torch_tests.Net", "importing broken_module_of_torch_tests failed: division by zero"),
        ("Missing", "module classes_of_torch_tests has no Missing"),
        ("NoModule", "not a class derived from torch.nn.Module"),
        ("X", "not a class derived from torch.nn.Module"),
        ("NeedsArgument", "class NeedsArgument cannot be built: .*classes"),
        ("NoSpecs", "needs `inputs`"),
        ("Strings", "gives 'x' the datatype BYTES; expected a numeric datatype"),
        ("Twice", "`outputs` names one tensor twice: y, y"),
        ("Negative", r"`inputs` gives 'x' the shape \[-2, 2\]; expected sizes, or -1 for a dynamic one"),
        ("Lazy", "class Lazy cannot be built: .*uninitialized"),
        ("Unborn", "class Unborn cannot be built: 'Unborn' object"),
        ("Stubborn", r"class Stubborn does not accept model\.safetensors: not mine"),
    ],
)
def test_a_wrong_class_is_one_sentence(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(ModelFailed, match=says):
        load(tmp_path, name, {} if name == "NoSpecs" else FACTOR)


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ({}, "does not fit class Scale: factor is missing"),
        ({**FACTOR, "more": FACTOR["factor"]}, "more is not in the class"),
        ({"factor": np.ones(3, np.float32)}, r"factor has shape \[3\]; the class has \[1\]"),
        ({"factor": np.ones(1, np.int64)}, r"factor is torch\.int64, expected torch\.float32$"),
        ({"factor": np.ones(1, np.bool_)}, r"factor is torch\.bool, expected torch\.float32$"),
        ({**FACTOR, **{f"w{n}": X for n in range(9)}}, "and 4 more$"),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path: Path, weights: dict[str, Array], says: str) -> None:
    with pytest.raises(ModelFailed, match=says):
        load(tmp_path, "Scale", weights)


@pytest.mark.parametrize("held", ["factor", "again"])
def test_weights_that_a_class_ties_may_stand_in_the_file_once(tmp_path: Path, held: str) -> None:
    weights = {held: np.full(1, 3.0, np.float32), "own": np.ones(1, np.float32)}
    engine = load(tmp_path, "Tied", weights)
    assert engine.run({"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[7.0, 7.0]]
    with pytest.raises(ModelFailed, match=r"does not fit class Tied: own is missing$"):
        load(tmp_path, "Tied", {held: weights[held]})


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "exploded",))  # type: ignore[return-value]  # any callable

    path = tmp_path / "model.safetensors"
    settings = ModelSettings("torch", torch_class="classes_of_torch_tests.Scale")
    for content in (pickle.dumps(Bomb()), b"", b"\xff" * 100):
        path.write_bytes(content)
        with pytest.raises(ModelFailed, match="not a readable safetensors file"):
            TorchEngine.load("m", path, settings)
    torch.save({"factor": torch.ones(1)}, path)
    with pytest.raises(ModelFailed, match="not a readable safetensors file"):
        TorchEngine.load("m", path, settings)
    assert not (tmp_path / "exploded").exists()


def header(text: bytes, data: bytes = bytes(4)) -> bytes:
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\0" * 7, "header would take 0 of 7 bytes"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "header would take 9223372036854775808 of 10 bytes"),
        (header(b" " * (17 << 20)), "a header of 17825792 bytes; at most 16777216 are allowed"),
        (header(b'{"factor":{"dtype":"F32","shape":[1],"data_offsets":[0,400]}}'), "not a readable safetensors file"),
        (header(b'{"factor":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}'), "not a readable safetensors file"),
        (header(b'{"factor":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}}'), "not a readable safetensors file"),
        (
            header(b'{"factor":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}'),
            "not a readable safetensors file",
        ),
        (header(b'{"factor":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}'), "not a readable safetensors file"),
        (
            header(
                b'{"factor":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                b'"more":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
            ),
            "not a readable safetensors file",
        ),
        (header(b'{"factor":' * 10_000), "not a readable safetensors file"),
        (header(b'{"factor":{"dtype":"PICKLE","shape":[1],"data_offsets":[0,4]}}'), "not a readable safetensors file"),
    ],
)
def test_a_header_that_lies_is_one_sentence_and_takes_no_memory(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFailed, match=says) as caught:
        TorchEngine.load("m", path, ModelSettings("torch", torch_class="classes_of_torch_tests.Scale"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("precision", "bits"), [("fp32", 20), ("fp16", 7), ("bf16", 4)])
def test_a_network_computes_in_what_is_asked_for_and_answers_as_declared(
    tmp_path: Path, precision: str, bits: int
) -> None:
    network = LargeNet()
    with torch.no_grad():
        for one in network.parameters():
            one.copy_(torch.randn(one.shape, generator=torch.Generator().manual_seed(one.numel())) * 0.1)
    weights = {name: one.detach().numpy() for name, one in network.state_dict().items()}
    x = np.random.default_rng(0).random((3, 32, 32, 1), np.float32)
    exact = load(tmp_path, "upwell.cloud.engines.torch.demo.LargeNet", weights).run({"x": x})["logits"]
    engine = load(tmp_path, "upwell.cloud.engines.torch.demo.LargeNet", weights, precision=precision)
    logits = engine.run({"x": x})["logits"]
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, exact, atol=np.abs(exact).max() * 2.0**-bits)
    if precision != "fp32":
        assert np.abs(logits - exact).max() > np.abs(exact).max() * 2.0**-20  # it was really computed in fewer bits


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"graphs": True}, "`graphs: true` needs a device with graphs, such as cuda; a CPU has none"),
        ({"device": "npu"}, "needs the package torch_npu"),
    ],
)
def test_what_the_device_cannot_do_fails_the_load(tmp_path: Path, settings: dict[str, object], says: str) -> None:
    with pytest.raises(ModelFailed, match=says):
        load(tmp_path, "Scale", FACTOR, **settings)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("WrongCount", "returned 2 outputs, but its class declares 1"),
        ("WrongType", r"output 'y' is float64 \[2, 2\], but its class declares FP32 \[-1, 2\]"),
        ("Failing", "the network failed: the first line$"),
        ("Reading", r"the network failed: \[Errno 2\] No such file or directory: 'words.txt'$"),
        ("Named", "the network returned dict; expected tensors in the order of its `outputs`"),
        ("Inner", "the network returned Tensor and tuple and NoneType; expected tensors"),
    ],
)
def test_a_network_that_does_not_do_as_it_says_fails(tmp_path: Path, name: str, says: str) -> None:
    engine = load(tmp_path, name)
    with pytest.raises(ModelFailed, match=says):
        engine.run({"x": X})


@pytest.mark.parametrize("device", ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])])
def test_memory_that_a_device_lacks_fails_that_run_alone(tmp_path: Path, device: str) -> None:
    engine = load(tmp_path, "Greedy", device=device)
    with pytest.raises(ModelFailed, match=r"the network failed: .*memory"):
        engine.run({"x": X})
    np.testing.assert_array_equal(engine.run({"x": X[:1]})["y"], X[:1] * 2)


def test_warming_up_tells_the_operator_the_whole_path(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match=r"'/srv/secret/words\.txt'$"):
        load(tmp_path, "Reading").warm_up(1)


@pytest.mark.parametrize("name", ["Named", "Inner"])
def test_half_precision_leaves_what_is_no_tensor_to_the_same_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFailed, match="expected tensors in the order of its `outputs`"):
        load(tmp_path, name, precision="bf16").run({"x": X})


def test_weights_of_another_width_are_taken(tmp_path: Path) -> None:
    for dtype in (np.float64, np.float16):
        engine = load(tmp_path, "Scale", {"factor": np.full(1, 2, dtype)})
        np.testing.assert_array_equal(engine.run({"x": X})["y"], X * 2)


def test_the_cpu_has_no_number(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="there is no device 'cpu:1': torch has one CPU; write `cpu`"):
        load(tmp_path, "Scale", device="cpu:1")


@pytest.mark.parametrize("device", ["cuda:0", "nonsense"])
def test_a_device_that_is_not_there_is_named(tmp_path: Path, device: str) -> None:
    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ModelFailed, match=f"device '{device}' is not usable"):
        load(tmp_path, "Scale", device=device)


def test_weights_that_others_are_copied_over_while_they_are_read_are_those_that_were_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping of the file, which safetensors reads by, would end the process where it has become shorter."""

    def and_cut(path: Path, what: str, wrong: Sequence[str]) -> None:
        refuse_misfits(path, what, wrong)
        os.truncate(path, 0)

    monkeypatch.setattr(networks, "refuse_misfits", and_cut)
    network = LargeNet()
    weights = {name: one.detach().numpy() for name, one in network.state_dict().items()}
    engine = load(tmp_path, "upwell.cloud.engines.torch.demo.LargeNet", weights)
    x = np.random.default_rng(0).random((2, 32, 32, 1), np.float32)
    with torch.inference_mode():
        expected = network.eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(engine.run({"x": x})["logits"], expected, rtol=1e-5, atol=1e-6)
