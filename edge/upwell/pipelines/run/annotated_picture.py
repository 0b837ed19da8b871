"""Draws what was found onto a picture: boxes, names, zones and lines."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from upwell.pipelines.frame import FoundObject, Scene
from upwell.pipelines.steps.geometry import Zones
from upwell.shared.tensors import Array

QUALITY = 85
"""Quality of the JPEG."""

_COLOURS = ("#ffb000", "#648fff", "#dc267f", "#785ef0", "#fe6100", "#00b37a")
"""Colours that colour-blind people can tell apart; a track keeps its colour."""
_ZONE = "#ffffff"
_PLAIN = "\ufffd"


def annotated(scene: Scene, zones: Zones | None = None) -> Array:
    """A copy of the scene's pixels, uint8 [height, width, 3], with what was found drawn in."""
    picture = Image.fromarray(np.ascontiguousarray(scene.pixels))
    draw = ImageDraw.Draw(picture, "RGBA")
    width, height = picture.size
    line_px = max(1, round(height / 240))
    font = ImageFont.load_default(size=max(10, round(height / 30)))
    if zones is not None:
        for polygon in zones.polygons.values():
            corners = [(x * width, y * height) for x, y in polygon]
            draw.polygon(corners, fill=(255, 255, 255, 24), outline=_ZONE, width=line_px)
        for line in zones.lines.values():
            draw.line([(x * width, y * height) for x, y in line], fill=_ZONE, width=line_px)
    for found in scene.objects:
        edges = (min(max(edge, -1.0), 2.0) for edge in found.box)  # Pillow overflows on coordinates far off the picture
        x1, y1, x2, y2 = (edge * size for edge, size in zip(edges, (width, height) * 2, strict=True))
        colour = _COLOURS[(found.track or 0) % len(_COLOURS)]
        draw.rectangle((x1, y1, max(x1, x2), max(y1, y2)), outline=colour, width=line_px)
        text = caption(found)
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
        at = (min(max(0, x1), max(0, width - right)), max(0.0, y1 - bottom - line_px))
        draw.rectangle((at[0] + left, at[1] + top, at[0] + right, at[1] + bottom), fill="#000000c0")
        draw.text(at, text, fill=colour, font=font)
    return np.asarray(picture)


def caption(found: FoundObject) -> str:
    """The caption of a box: its label, its track, and the models' answers."""
    said = [str(answer["label"]) for answer in found.answers.values() if answer.get("label")]
    who = found.label if found.track is None else f"{found.label} {found.track}"
    text = f"{who}: {', '.join(said)}" if said else who
    return "".join(sign if sign.isprintable() else _PLAIN for sign in text)


def jpeg(pixels: Array) -> bytes:
    """The picture as a JPEG."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()
