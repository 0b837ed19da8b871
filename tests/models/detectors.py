"""Small trained detectors, a pair for each of three made sets of pictures: other shapes, clutter and sizes in each.

A set is drawn from a seed. Its pair is trained in some minutes on a CPU: the device's sees 64 x 64 pixels, the cloud's
128 x 128 and is larger. Both give one tensor [rows, 4 + classes, places] in the manner of YOLO (center, width and
height in pixels, then a score for each class), and their scores are what such training gives, sure or unsure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.nn import functional

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

SIDE = 128
"""Of the pictures, in pixels."""
STRIDE = 4

MODEL_YAML = """\
version: 1
signature:
  inputs: {{image: {{kind: image}}}}
  outputs: {{detections: {{kind: detections, labels: [{labels}]}}}}
pre: [{{decode: image}}, {{resize: {{to: [{side}, {side}]}}}}, {{normalize: {{}}}}, {{layout: NCHW}}]
post: [{{boxes: {{format: cxcywh, max: 60}}}}]
"""


@dataclass(frozen=True)
class Scene:
    """A picture UINT8 [SIDE, SIDE, 3] and its objects [n, 5]: x1, y1, x2, y2 in pixels, class."""

    picture: Bytes
    objects: Floats


@dataclass(frozen=True)
class DetectionSet:
    """One kind of pictures. `focal`: trained with the focal loss, whose scores are lower than chances are."""

    name: str
    labels: tuple[str, ...]
    draw: Callable[[np.random.Generator], Scene]
    focal: bool = False


def scenes(of: DetectionSet, count: int, seed: int) -> list[Scene]:
    """So many, the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [of.draw(rng) for _ in range(count)]


# --- What is drawn


def _noise(rng: np.random.Generator, cells: int, strength: float) -> Floats:
    """Patches of colour of about SIDE / cells pixels."""
    coarse = np.clip(rng.normal(110, strength, (cells, cells, 3)), 0, 255).astype(np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.float64)


def _free(
    rng: np.random.Generator, size: tuple[int, int], boxes: list[list[float]], overlap: float
) -> list[int] | None:
    """A place for `size` (width, height) that shares at most `overlap` of itself with what is there already."""
    width, height = size
    for _ in range(20):
        x, y = int(rng.integers(0, SIDE - width)), int(rng.integers(0, SIDE - height))
        shared = [
            max(0.0, min(x + width, b[2]) - max(x, b[0])) * max(0.0, min(y + height, b[3]) - max(y, b[1]))
            for b in boxes
        ]
        if max(shared, default=0.0) <= overlap * width * height:
            return [x, y, x + width, y + height]
    return None


def _finished(rng: np.random.Generator, image: Image.Image, boxes: list[list[float]], noise: float) -> Scene:
    pixels = np.asarray(image, dtype=np.float64) + rng.normal(0, noise, (SIDE, SIDE, 3))
    return Scene(np.clip(pixels, 0, 255).astype(np.uint8), np.array(boxes, dtype=np.float64).reshape(-1, 5))


def _draw_shapes(rng: np.random.Generator) -> Scene:
    """One to five boxes, triangles and rings of 16 to 56 pixels among lines and spots; some partly hidden."""
    image = Image.fromarray(_noise(rng, 6, 30).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    boxes: list[list[float]] = []
    for _ in range(int(rng.integers(0, 10))):
        start, end = rng.integers(0, SIDE, 2), rng.integers(0, SIDE, 2)
        pen.line((*start.tolist(), *end.tolist()), fill=tuple(rng.integers(40, 200, 3).tolist()), width=2)
    for _ in range(int(rng.integers(1, 6))):
        width = int(16 * (3.5 ** rng.random()))
        place = _free(rng, (width, max(8, int(width * rng.uniform(0.7, 1.4)))), boxes, 0.15)
        if place is None:
            continue
        kind = int(rng.integers(0, 3))
        color = tuple((110 + rng.choice([-1, 1]) * rng.uniform(35, 110, 3)).astype(int).tolist())
        x1, y1, x2, y2 = place
        if kind == 0:
            pen.rectangle((x1, y1, x2 - 1, y2 - 1), fill=color)
        elif kind == 1:
            pen.polygon([((x1 + x2) / 2, y1), (x1, y2 - 1), (x2 - 1, y2 - 1)], fill=color)
        else:
            pen.ellipse((x1, y1, x2 - 1, y2 - 1), outline=color, width=max(2, (x2 - x1) // 5))
        boxes.append([*map(float, place), float(kind)])
    for _ in range(int(rng.integers(0, 4))):
        x, y = rng.integers(0, SIDE, 2).tolist()
        pen.rectangle((x, y, x + 6, y + int(rng.integers(10, 40))), fill=tuple(rng.integers(60, 170, 3).tolist()))
    return _finished(rng, image, boxes, 8)


def _draw_crowd(rng: np.random.Generator) -> Scene:
    """None to fourteen discs and crosses of 12 to 26 pixels on a slope of light, some faint, close together."""
    slope = np.linspace(0, rng.uniform(-60, 60), SIDE)
    ground = np.clip(rng.uniform(60, 190) + slope[None, :, None] + slope[:, None, None] * rng.uniform(-1, 1), 20, 235)
    image = Image.fromarray(np.repeat(ground, 3, axis=2).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    boxes: list[list[float]] = []
    for _ in range(max(0, int(rng.normal(3, 4)))):
        size = int(rng.integers(12, 27))
        place = _free(rng, (size, size), boxes, 0.1)
        if place is None or len(boxes) == 14:
            continue
        x1, y1, x2, y2 = place
        kind = int(rng.integers(0, 2))
        local = float(ground[(y1 + y2) // 2, (x1 + x2) // 2].mean())
        tone = int(np.clip(local + rng.choice([-1, 1]) * rng.uniform(25, 100), 0, 255))
        if kind == 0:
            pen.ellipse((x1, y1, x2 - 1, y2 - 1), fill=(tone,) * 3)
        else:
            arm = max(2, size // 4)
            pen.rectangle((x1, (y1 + y2 - arm) / 2, x2 - 1, (y1 + y2 + arm) / 2 - 1), fill=(tone,) * 3)
            pen.rectangle(((x1 + x2 - arm) / 2, y1, (x1 + x2 + arm) / 2 - 1, y2 - 1), fill=(tone,) * 3)
        boxes.append([*map(float, place), float(kind)])
    return _finished(rng, image, boxes, 7)


GLYPHS = "AHX4"


def _draw_glyphs(rng: np.random.Generator) -> Scene:
    """None to three letters of 18 to 60 pixels, turned a little, on fine patches; other letters are clutter."""
    image = Image.fromarray(_noise(rng, int(rng.integers(8, 33)), 28).astype(np.uint8))
    boxes: list[list[float]] = []
    wanted, clutter = int(rng.integers(0, 4)), int(rng.integers(0, 3))
    for index in range(wanted + clutter):
        is_wanted = index < wanted
        kind = int(rng.integers(0, len(GLYPHS)))
        text = GLYPHS[kind] if is_wanted else str(rng.choice(list("CGOQU")))
        font = ImageFont.load_default(size=float(26 * (2.8 ** rng.random())))
        mask = Image.new("L", (90, 90))
        ImageDraw.Draw(mask).text((45, 45), text, fill=255, font=font, anchor="mm")
        mask = mask.rotate(float(rng.uniform(-25, 25)), resample=Image.Resampling.BILINEAR)
        inside = mask.getbbox()
        if inside is None:
            continue
        mask = mask.crop(inside)
        place = _free(rng, mask.size, boxes, 0.0)
        if place is None:
            continue
        color = tuple((110 + rng.choice([-1, 1]) * rng.uniform(30, 120, 3)).astype(int).tolist())
        image.paste(Image.new("RGB", mask.size, color), (place[0], place[1]), mask)
        if is_wanted:
            boxes.append([*map(float, place), float(kind)])
    return _finished(rng, image, boxes, 8)


SETS = (
    DetectionSet("shapes", ("box", "triangle", "ring"), _draw_shapes),
    DetectionSet("crowd", ("disc", "cross"), _draw_crowd, focal=True),
    DetectionSet("glyphs", tuple(GLYPHS), _draw_glyphs),
)


# --- What is trained


class Detector(nn.Module):
    """Pictures [rows, 3, side, side] in 0..1 -> [rows, 4 + classes, places]; of `width` channels at first."""

    def __init__(self, classes: int, side: int, width: int, depth: int) -> None:
        super().__init__()
        wide = 2 * width
        layers = [_block(3, width, stride=2), _block(width, wide, stride=2)]
        layers += [_block(wide, wide, dilation=1 + index % 4) for index in range(depth)]
        self.body = nn.Sequential(*layers)
        self.boxes, self.scores = nn.Conv2d(wide, 4, 1), nn.Conv2d(wide, classes, 1)
        nn.init.constant_(self.scores.bias, -4.0)  # type: ignore[arg-type]  # a 1 x 1 convolution has one
        self.side = side
        places = (torch.arange(side // STRIDE) + 0.5) * STRIDE
        y, x = torch.meshgrid(places, places, indexing="ij")
        self.centers: torch.Tensor
        self.register_buffer("centers", torch.stack([x.flatten(), y.flatten()]))

    def raw(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Corners [rows, 4, places] in pixels and the logits of classes [rows, classes, places]."""
        features = self.body(pictures)
        distances = functional.softplus(self.boxes(features).flatten(2)) * 2 * STRIDE
        centers = self.centers.unsqueeze(0)
        return torch.cat([centers - distances[:, :2], centers + distances[:, 2:]], 1), self.scores(features).flatten(2)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """As the exported model gives it."""
        corners, logits = self.raw(pictures)
        first, last = corners[:, :2], corners[:, 2:]
        return torch.cat([(first + last) / 2, last - first, torch.sigmoid(logits)], 1)


def _block(taken: int, given: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(taken, given, 3, stride, padding=dilation, dilation=dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(given), nn.ReLU())


def trained(of: DetectionSet, which: Literal["edge", "cloud"], *, steps: int, seed: int = 1) -> Detector:
    """The detector of one side, trained for `steps` batches of 32."""
    torch.manual_seed(seed)
    side, width, depth = (64, 14, 5) if which == "edge" else (128, 16, 6)
    model = Detector(len(of.labels), side, width, depth)
    drawn = scenes(of, min(2500, 32 * steps), seed)
    pictures, boxes, classes = _targets(drawn, model, side)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for _ in range(steps):
        batch = torch.randint(0, len(drawn), (32,))
        corners, logits = model.raw(pictures[batch])
        loss = _loss(corners, logits, boxes[batch], classes[batch], focal=of.focal)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
        optimizer.step()
        schedule.step()
    return model.eval()


def _targets(drawn: list[Scene], model: Detector, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pictures, for each place its box in pixels, and its class (-1 none, -2 too near an object to be none)."""
    pictures = torch.stack([_as_input(scene.picture, side) for scene in drawn])
    places = model.centers.T.numpy()
    boxes = np.zeros((len(drawn), len(places), 4))
    classes = np.full((len(drawn), len(places)), -1)
    for index, scene in enumerate(drawn):
        for *corners, kind in sorted(scene.objects.tolist(), key=lambda o: -(o[2] - o[0]) * (o[3] - o[1])):
            box = np.array(corners) * side / SIDE
            center = (box[:2] + box[2:]) / 2
            far = np.abs(places - center) / np.maximum((box[2:] - box[:2]) / 2, STRIDE / 2)
            near = np.abs(places - center).max(axis=1)
            classes[index, (far.max(axis=1) < 0.5)] = -2
            positive = (far.max(axis=1) <= 1) & (near <= STRIDE)
            positive |= near == near.min()
            boxes[index, positive], classes[index, positive] = box, int(kind)
    return pictures, torch.tensor(boxes, dtype=torch.float32), torch.tensor(classes)


def _as_input(picture: Bytes, side: int) -> torch.Tensor:
    image = Image.fromarray(picture).resize((side, side), Image.Resampling.BILINEAR)
    return torch.tensor(np.asarray(image), dtype=torch.float32).permute(2, 0, 1) / 255


def _loss(
    corners: torch.Tensor, logits: torch.Tensor, boxes: torch.Tensor, classes: torch.Tensor, *, focal: bool
) -> torch.Tensor:
    positive, known = classes >= 0, classes > -2
    wanted = functional.one_hot(classes.clamp(min=0), logits.shape[1]) * positive.unsqueeze(-1)
    scores, target = logits.transpose(1, 2)[known], wanted[known].float()
    losses = functional.binary_cross_entropy_with_logits(scores, target, reduction="none")
    if focal:  # Lin et al. 2017, arXiv 1708.02002, with gamma 2
        losses = losses * (torch.sigmoid(scores) - target).abs() ** 2
    count = positive.sum().clamp(min=1)
    found, truth = corners.transpose(1, 2)[positive], boxes[positive]
    shared = (
        (torch.minimum(found[:, 2:], truth[:, 2:]) - torch.maximum(found[:, :2], truth[:, :2])).clamp(min=0).prod(1)
    )
    union = (found[:, 2:] - found[:, :2]).prod(1) + (truth[:, 2:] - truth[:, :2]).prod(1) - shared
    return losses.sum() / count + 2 * (1 - shared / union).mean() + 0.02 * (found - truth).abs().mean()


def write_pair(of: DetectionSet, folder: Path, *, edge_steps: int, cloud_steps: int) -> None:
    """Train both and write `edge/model.onnx` and `cloud/model.onnx` below `folder`, each with its model.yaml."""
    for which, steps in (("edge", edge_steps), ("cloud", cloud_steps)):
        model = trained(of, which, steps=steps)  # type: ignore[arg-type]  # one of the two names
        (folder / which).mkdir(parents=True, exist_ok=True)
        example = (torch.zeros(1, 3, model.side, model.side),)
        options: dict[str, Any] = {"input_names": ["images"], "output_names": ["output0"], "dynamo": False}
        torch.onnx.export(
            model,
            example,
            str(folder / which / "model.onnx"),
            dynamic_axes={"images": {0: "rows"}, "output0": {0: "rows"}},
            **options,
        )
        text = MODEL_YAML.format(labels=", ".join(map(repr, of.labels)), side=model.side)
        (folder / which / "model.yaml").write_text(text)
