"""Train a small and a larger text classifier, and write a device, a service and held-out texts for them.

    python examples/text/make_models.py FOLDER

The texts are sentences from the documentation of installed packages, and the class of each is its package. The
device's network sees the first tokens in a small vocabulary, the cloud's the whole sentence in a large one.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional

from upwell.shared.tensors import Array

PACKAGES = ("matplotlib", "numpy", "scipy", "sklearn")
EACH = 4000
"""Maximum number of sentences per package."""
SEED, BATCH = 0, 128
SHARES = (0.1, 0.2, 0.3, 0.4)
WINDOW = 3
"""The number of tokens that a convolution of the larger network sees at once."""


@dataclass(frozen=True)
class Size:
    """A network: its vocabulary, its longest text in tokens, the length of a token's vector, epochs of training."""

    vocabulary: int
    tokens: int
    width: int
    epochs: int
    convolves: bool


SMALL = Size(vocabulary=1000, tokens=32, width=12, epochs=8, convolves=False)
LARGE = Size(vocabulary=8000, tokens=64, width=64, epochs=5, convolves=True)


class Classifier(nn.Module):
    """Token ids and mask [N, tokens] -> logits [N, classes]: the mean of token vectors, or the maximum over windows."""

    def __init__(self, size: Size, classes: int) -> None:
        super().__init__()
        self.size = size
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.convolve = nn.Conv1d(size.width, 2 * size.width, WINDOW, padding=1) if size.convolves else None
        self.head = nn.Linear(2 * size.width if size.convolves else size.width, classes)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logits [N, classes]."""
        counts = mask.float()[:, None, :]
        vectors = self.embed(ids).transpose(1, 2) * counts
        if self.convolve is None:
            pooled = vectors.sum(2) / counts.sum(2).clamp(min=1)
        else:
            pooled = (functional.relu(self.convolve(vectors)) * counts).amax(2)
            pooled = functional.dropout(pooled, 0.2, self.training)
        logits: torch.Tensor = self.head(pooled)
        return logits


@dataclass(frozen=True)
class Texts:
    """Sentences and their packages' numbers."""

    sentences: Sequence[str]
    labels: Array

    def part(self, rows: Array) -> Texts:
        """A subset."""
        return Texts([self.sentences[row] for row in rows], self.labels[rows])


def sentences_of(package: str) -> Iterator[str]:
    """Sentences of the docstrings of an installed package, without its name. Its sources are parsed, never run."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    for file in sorted(Path(found.origin).parent.rglob("*.py")):
        if "test" in file.parts[-2] or file.name.startswith("test_"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in those packages' strings
            tree = ast.parse(file.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield from _sentences(ast.get_docstring(node) or "", package)


def _sentences(text: str, package: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        if ">>>" in paragraph or "---" in paragraph:
            continue
        for sentence in re.split(r"(?<=\.)\s", " ".join(paragraph.split())):
            if 6 <= len(sentence.split()) <= 40:
                yield re.sub(rf"{package}|scikit-learn", "this", sentence, flags=re.IGNORECASE)


def collect() -> tuple[Texts, Texts]:
    """The texts to train on, and a held-out quarter."""
    rng = np.random.default_rng(SEED)
    sentences: list[str] = []
    labels: list[int] = []
    seen: set[str] = set()
    for number, package in enumerate(PACKAGES):
        mine = sorted(set(sentences_of(package)) - seen)
        seen.update(mine)
        chosen = rng.permutation(len(mine))[:EACH]
        sentences += [mine[row] for row in chosen]
        labels += [number] * len(chosen)
    everything = Texts(sentences, np.array(labels))
    order = rng.permutation(len(sentences))
    held_out = len(order) // 4
    return everything.part(order[held_out:]), everything.part(order[:held_out])


def tokenizer_of(size: Size, sentences: Sequence[str]) -> Tokenizer:
    """A WordPiece tokenizer with its own vocabulary."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size.vocabulary, special_tokens=["[PAD]", "[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def tokens_of(tokenizer: Tokenizer, size: Size, sentences: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask as INT64 [N, tokens]."""
    ids = np.zeros((len(sentences), size.tokens), np.int64)
    mask = np.zeros_like(ids)
    for row, sentence in enumerate(sentences):
        found = tokenizer.encode(sentence).ids[: size.tokens]
        ids[row, : len(found)], mask[row, : len(found)] = found, 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def train(size: Size, tokenizer: Tokenizer, texts: Texts, console: Console) -> Classifier:
    """AdamW, a fixed number of epochs; the last weights are kept, so no held-out figure chooses them."""
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    network = Classifier(size, len(PACKAGES))
    ids, mask = tokens_of(tokenizer, size, texts.sentences)
    labels = torch.from_numpy(texts.labels)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=0.01)
    for _ in track(range(size.epochs), description=f"{size.vocabulary} tokens", console=console):
        for rows in torch.from_numpy(rng.permutation(len(labels))).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(network(ids[rows], mask[rows]), labels[rows]).backward()
            optimizer.step()
    return network.eval()


def onnx_of(network: Classifier) -> onnx.ModelProto:
    """The same network as ONNX: `input_ids` and `attention_mask` [rows, tokens] -> `logits` [rows, classes]."""
    weights = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
    weights["head.turned"] = weights.pop("head.weight").T.copy()
    constants = {"axis_1": [1], "axis_2": [2]}
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    initializers += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()]
    initializers.append(numpy_helper.from_array(np.float32(1), "one"))
    node = helper.make_node
    nodes = [
        node("Cast", ["attention_mask"], ["counts"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["counts", "axis_1"], ["counts_1"]),
        node("Gather", ["embed.weight", "input_ids"], ["embedded"]),
        node("Transpose", ["embedded"], ["turned"], perm=[0, 2, 1]),
        node("Mul", ["turned", "counts_1"], ["vectors"]),
    ]
    if network.convolve is None:
        nodes += [
            node("ReduceSum", ["vectors", "axis_2"], ["sum"], keepdims=0),
            node("ReduceSum", ["counts_1", "axis_2"], ["number"], keepdims=0),
            node("Max", ["number", "one"], ["at_least_1"]),
            node("Div", ["sum", "at_least_1"], ["pooled"]),
        ]
    else:
        nodes += [
            node("Conv", ["vectors", "convolve.weight", "convolve.bias"], ["windows"], pads=[1, 1]),
            node("Relu", ["windows"], ["positive"]),
            node("Mul", ["positive", "counts_1"], ["counted"]),
            node("ReduceMax", ["counted", "axis_2"], ["pooled"], keepdims=0),
        ]
    nodes.append(node("Gemm", ["pooled", "head.turned", "head.bias"], ["logits"]))
    takes = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "tokens"])
        for name in ("input_ids", "attention_mask")
    ]
    gives = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", len(PACKAGES)])]
    graph = helper.make_graph(nodes, "texts", takes, gives, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def write(folder: Path, size: Size, network: Classifier, tokenizer: Tokenizer) -> None:
    """Write model, tokenizer, labels and description."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx_of(network), folder / "model.onnx")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "labels.txt").write_text("".join(f"{package}\n" for package in PACKAGES))
    (folder / "model.yaml").write_text(
        f"""\
version: 1
signature:
  inputs: {{text: {{kind: text}}}}
  outputs: {{scores: {{kind: probabilities, labels: labels.txt}}}}
pre: [{{tokenize: {{tokenizer: tokenizer.json, max_tokens: {size.tokens}}}}}]
post: [{{softmax: {{from: logits, to: scores}}}}]
"""
    )


def print_cascade(console: Console, small: Array, large: Array, labels: Array) -> None:
    """Print the accuracy if the larger network classifies the sentences of least margin."""
    top = np.sort(small, axis=1)
    margin = top[:, -1] - top[:, -2]
    order = margin.argsort()
    table = Table(title=f"{len(labels)} held-out sentences")
    for heading in ("share sent up", "margin below", "accuracy"):
        table.add_column(heading, justify="right")
    for share in (0.0, *SHARES, 1.0):
        count = round(share * len(order))
        mixed = small.argmax(1)
        mixed[order[:count]] = large.argmax(1)[order[:count]]
        below = margin[order[count]] if count < len(order) else 1.0
        table.add_row(f"{share:.0%}", f"{below:.3f}", f"{(mixed == labels).mean():.4f}")
    console.print(table)


def main() -> None:
    """Make everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)  # fixed order of sums: same versions, same weights
    console = Console(file=sys.stdout)
    texts, heldout = collect()
    answers = []
    for size, place in ((SMALL, folder / "edge" / "texts"), (LARGE, folder / "cloud" / "texts" / "1")):
        tokenizer = tokenizer_of(size, texts.sentences)
        network = train(size, tokenizer, texts, console)
        write(place, size, network, tokenizer)
        with torch.inference_mode():
            logits = network(*tokens_of(tokenizer, size, heldout.sentences))
        answers.append(logits.softmax(1).numpy())
        weights = sum(parameter.numel() for parameter in network.parameters())
        accuracy = (answers[-1].argmax(1) == heldout.labels).mean()
        console.print(f"{place}: {weights:,} weights, accuracy {accuracy:.4f}")
    print_cascade(console, *answers, heldout.labels)
    rows = zip(heldout.sentences, heldout.labels.tolist(), strict=True)
    lines = (json.dumps({"text": sentence, "label": label}) for sentence, label in rows)
    (folder / "heldout.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
