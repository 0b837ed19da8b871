"""Make the files of `tests/models/described`, which carry what exporters write, with those exporters' own writers.

    python tests/models/make_described.py base                    # in the environment of the tests
    python tests/models/make_described.py tflite-support FOLDER   # in one with tflite-support 0.4.4 and numpy<2

The first writes models whose answer is the mean of each channel, the second gives them the metadata of an image
classifier: normalization, and labels behind the model.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "described"
LABELS = ("red thing", "green thing", "blue thing")
NUMBERS = {"UINT8": ((1 / 127.5, 127), 127.5, 127.5), "FP32": (None, 127.5, 127.5)}


def base() -> None:
    """Models `[1, 8, 8, 3]` -> `[1, 3]`, without metadata."""
    import numpy as np
    from ai_edge_litert import schema_py_generated as schema

    from tests.unit.tflite_for_tests import Op, T, save

    for datatype, (quantization, _, _) in NUMBERS.items():
        options = schema.ReducerOptionsT()
        mean = Op(schema.BuiltinOperator.MEAN, (0, 1), (2,), schema.BuiltinOptions.ReducerOptions, options)
        tensors = [
            T("pixels", (1, 8, 8, 3), datatype, None, quantization),
            T("axes", (2,), "INT32", np.array([1, 2], np.int32)),
            T("scores", (1, 3), datatype, None, quantization),
        ]
        save(FOLDER / f"tflite_support_{datatype.lower()}.tflite", tensors, [mean], [0], [2])


def tflite_support() -> None:
    """The same files with the metadata of tflite-support's writer."""
    from tflite_support.metadata_writers import image_classifier, writer_utils

    labels = FOLDER / "labels-to-pack.txt"
    labels.write_text("\n".join(LABELS) + "\n")
    for datatype, (_, mean, std) in NUMBERS.items():
        path = FOLDER / f"tflite_support_{datatype.lower()}.tflite"
        writer = image_classifier.MetadataWriter.create_for_inference(
            writer_utils.load_file(str(path)), [mean], [std], [str(labels)]
        )
        writer_utils.save_file(writer.populate(), str(path))
    labels.unlink()


if __name__ == "__main__":
    {"base": base, "tflite-support": tflite_support}[sys.argv[1]]()
