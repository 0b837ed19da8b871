"""Make the files of `tests/models/described`, which carry what exporters write, with those exporters' own writers.

    python tests/models/make_described.py base                    # in the environment of the tests
    python tests/models/make_described.py tflite-support FOLDER   # in one with tflite-support 0.4.4 and numpy<2
    python tests/models/make_described.py optimum                 # transformers 4.57.6 and optimum-onnx 0.1.0
    python tests/models/make_described.py ultralytics             # ultralytics 8.4.190
    python tests/models/make_described.py librosa                 # librosa 0.11.0
    python tests/models/make_described.py trees     # skl2onnx 1.20.0, onnxmltools 1.16.0, xgboost 3.2.0, lightgbm 4.7.0

The first writes models whose answer is the mean of each channel, the second gives them the metadata of an image
classifier: normalization, and labels behind the model. The third writes folders of Hugging Face with random weights, as
Optimum exports them, and `expected.json`: what transformers answers to `TEXTS` and to `photo.png`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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


def ultralytics() -> None:
    """Networks of each task with random weights, and what Ultralytics finds by them in `wide.png`."""
    import tempfile

    import numpy as np
    import torch
    from PIL import Image
    from ruamel.yaml import YAML
    from ultralytics import YOLO
    from ultralytics.utils import ROOT

    patches = np.random.default_rng(1).integers(0, 256, (6, 8, 3), np.uint8)
    photo = FOLDER / "wide.png"
    Image.fromarray(patches).resize((64, 48), Image.Resampling.BICUBIC).save(photo)
    found: dict[str, object] = {}
    for task, name in TASKS.items():
        torch.manual_seed(0)
        architecture = YAML(typ="safe").load(ROOT / f"cfg/models/26/{name}.yaml")
        architecture |= {"nc": 3, "scales": {"n": [0.33, 0.03125, 256]}}
        if task == "pose":
            architecture["kpt_shape"] = [3, 3]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{name.replace('yolo26', 'yolo26n')}.yaml"
            YAML(typ="safe").dump(architecture, file)
            network = YOLO(str(file), task=task)
            network.model.names = dict(enumerate(LABELS))
            for weights in network.model.parameters():  # of its own random ones no picture gets through to the scores
                if weights.dim() == 4:
                    torch.nn.init.kaiming_normal_(weights, nonlinearity="relu")
            for scores in (one[-1] for one in network.model.model[-1].cv3):
                scores.bias.data[:] = -1.0
            made = network.export(format="onnx", imgsz=64, simplify=False, device="cpu")
            (FOLDER / f"ultralytics_{task}.onnx").write_bytes(Path(made).read_bytes())
            exported = YOLO(str(FOLDER / f"ultralytics_{task}.onnx"), task=task)
            (result,) = exported.predict(str(photo), conf=0.25, iou=0.45, max_det=100, verbose=False, device="cpu")
        boxes = result.obb if task == "obb" else result.boxes
        corners = boxes.xyxy if task == "obb" else boxes.xyxyn
        found[task] = np.column_stack((corners.numpy(), boxes.conf.numpy(), boxes.cls.numpy()))
        if task == "obb":
            found["corners"] = boxes.xyxyxyxyn.numpy()
        if task == "pose":
            found["keypoints"] = np.concatenate((result.keypoints.xyn, result.keypoints.conf[..., None]), axis=2)
        if task == "segment":
            found["masks"] = result.masks.data.numpy().astype(np.bool_)
    np.savez_compressed(FOLDER / "ultralytics.npz", **found)  # type: ignore[arg-type]  # arrays, all of them


SPECTROGRAMS: dict[str, dict[str, Any]] = {
    "plain": {"sr": 16000, "n_fft": 512, "hop_length": 160, "n_mels": 40},
    "narrow": {"sr": 22050, "n_fft": 1024, "hop_length": 512, "n_mels": 64, "fmin": 50.0, "fmax": 8000.0},
    "htk": {
        "sr": 16000,
        "n_fft": 400,
        "hop_length": 160,
        "n_mels": 32,
        "htk": True,
        "norm": None,
        "pad_mode": "reflect",
    },
}


def librosa() -> None:
    """What librosa makes of a chirp with noise: powers, not logarithms."""
    import librosa as theirs
    import numpy as np

    seconds = np.arange(6000) / 16000
    sound = np.sin(2 * np.pi * (200 + 9000 * seconds) * seconds) + 0.1 * np.random.default_rng(0).standard_normal(6000)
    made = {name: theirs.feature.melspectrogram(y=sound, **keys) for name, keys in SPECTROGRAMS.items()}
    np.savez_compressed(FOLDER / "librosa.npz", sound=sound, **made)


def trees() -> None:
    """Classifiers of scikit-learn's irises, of 1 to 2 kB, and what their own packages answer to the first rows."""
    import lightgbm
    import numpy as np
    import onnxmltools
    import xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType
    from skl2onnx import to_onnx
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    rows, classes = load_iris(return_X_y=True)
    rows = rows.astype(np.float32)
    forest = RandomForestClassifier(3, max_depth=3, random_state=0).fit(rows, classes)
    boosted = xgboost.XGBClassifier(n_estimators=2, max_depth=2).fit(rows, classes)
    light = lightgbm.LGBMClassifier(n_estimators=2, max_depth=2, verbose=-1).fit(rows, classes)
    linear = LogisticRegression(max_iter=500).fit(rows, classes)
    raw = xgboost.train(
        {"objective": "multi:softmax", "num_class": 3, "max_depth": 2}, xgboost.DMatrix(rows, classes), 2
    )
    takes = [("input", FloatTensorType([None, 4]))]
    for name, model in {
        "sklearn": to_onnx(forest, rows[:1], options={"zipmap": False}, target_opset={"": 17, "ai.onnx.ml": 3}),
        "sklearn_zipmap": to_onnx(forest, rows[:1], target_opset={"": 17, "ai.onnx.ml": 3}),
        "sklearn_raw": to_onnx(
            linear, rows[:1], options={"zipmap": False, "raw_scores": True}, target_opset={"": 17, "ai.onnx.ml": 3}
        ),
        "sklearn_distances": to_onnx(
            KMeans(3, n_init=1, random_state=0).fit(rows), rows[:1], target_opset={"": 17, "ai.onnx.ml": 3}
        ),
        "xgboost": onnxmltools.convert_xgboost(boosted, initial_types=takes),
        "xgboost_raw": onnxmltools.convert_xgboost(raw, initial_types=takes),
        "lightgbm": onnxmltools.convert_lightgbm(light, initial_types=takes, zipmap=False),
    }.items():
        (FOLDER / f"{name}.onnx").write_bytes(model.SerializeToString())
    some = rows[::15]
    answers = {"sklearn": forest, "xgboost": boosted, "lightgbm": light}
    expected = {name: model.predict_proba(some) for name, model in answers.items()}
    np.savez_compressed(FOLDER / "trees.npz", rows=some, **expected)


TASKS = {
    "detect": "yolo26", "segment": "yolo26-seg", "pose": "yolo26-pose", "obb": "yolo26-obb",
}  # fmt: skip
TEXTS = ("the quick dog", "good bad bad fox " * 20)


def optimum() -> None:
    """A text and a picture classifier, 30 to 40 kB each."""
    import json
    import tempfile

    import numpy as np
    import torch
    import transformers
    from optimum.exporters.onnx import main_export
    from PIL import Image
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "quick", "brown", "fox", "lazy", "dog", "good", "bad"]
    tokenizer = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokens = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", model_max_length=32
    )
    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {label: at for at, label in enumerate(LABELS)}}
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, **labels}
    torch.manual_seed(0)
    bert = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=12, max_position_embeddings=32, initializer_range=1.0, **small)
    ).eval()
    vit = transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=16, patch_size=8, initializer_range=0.5, **small)
    ).eval()
    pictures = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
    patches = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
    photo = Image.fromarray(patches).resize((60, 40), Image.Resampling.BICUBIC)
    photo.save(FOLDER / "photo.png")
    with torch.no_grad():
        encoded = tokens(list(TEXTS), padding=True, truncation=True, return_tensors="pt")
        expected = {
            "texts": bert(**encoded).logits.tolist(),
            "photo": vit(pictures(photo, return_tensors="pt")["pixel_values"]).logits.tolist(),
        }
    (FOLDER / "expected.json").write_text(json.dumps(expected) + "\n")
    for name, model, processor, task in (
        ("optimum_bert", bert, tokens, "text-classification"),
        ("optimum_vit", vit, pictures, "image-classification"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            processor.save_pretrained(folder)
            main_export(folder, str(FOLDER / name), task=task, opset=17)


if __name__ == "__main__":
    {
        "base": base,
        "tflite-support": tflite_support,
        "optimum": optimum,
        "ultralytics": ultralytics,
        "trees": trees,
        "librosa": librosa,
    }[sys.argv[1]]()
