"""Every example of the reference loads for the tensors that its first lines name."""

import re
from pathlib import Path

import pytest

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.signature.model_yaml import ModelDescription, PostOp, PreOp
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import TensorSpec

TEXT = (Path(__file__).parents[3] / "docs/model-yaml.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def specs(text: str) -> list[TensorSpec]:
    found = re.findall(r"(\S+) ([A-Z]+\d*) \[([^]]*)\]", text)
    return [TensorSpec(name, dtype, tuple(int(size) for size in shape.split(", "))) for name, dtype, shape in found]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example(example: str, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(f"class {n}" for n in range(10)))
    description = parse_yaml(example, ModelDescription, tmp_path / "model.yaml")
    models = re.findall(r"^# (onnx|tflite): (.*) -> (.*)$", example, re.MULTILINE)
    assert models
    for runtime, inputs, outputs in models:
        processor = Processor(description, specs(inputs), specs(outputs), runtime)
        assert [one.name for one in processor.signature.outputs] == list(description.signature.outputs)


def test_every_operation_and_key_is_in_the_reference() -> None:
    for operations in (PreOp, PostOp):
        for name, field in operations.model_fields.items():
            assert re.search(rf"^\| `{name}[`:]|`{name}`$", TEXT, re.MULTILINE), name
            (model,) = [one for one in field.annotation.__args__ if one is not type(None)]  # type: ignore[union-attr]  # X | None
            for key, inner in model.model_fields.items():
                assert f"`{inner.alias or key}`" in TEXT, f"{name}.{key}"
