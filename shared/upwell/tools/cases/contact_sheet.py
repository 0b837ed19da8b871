"""A sheet of cases to look at: each picture with both answers and why it was kept, as HTML or as one PNG."""

from __future__ import annotations

import base64
import html
import io
import textwrap
from collections.abc import Iterable, Mapping

import numpy as np
from PIL import Image, ImageDraw

from upwell.edge.case_collection.collected_case import CaseSignature, CollectedCase, one_class
from upwell.shared.errors import InvalidRequest
from upwell.shared.signature.answer_agreement import found_boxes, label_of
from upwell.shared.signature.picture_codec import decode
from upwell.shared.signature.pixel_budget import DEFAULT_MAX_PIXELS
from upwell.shared.tensors import Array
from upwell.shared.units import count_of

_SIDE = 224
_LINES = 5
_MOST_TEXT = 1000
_COLUMNS = 6
_COLORS = {"edge": (230, 120, 20), "cloud": (30, 110, 220)}
_STYLE = """body{font:14px system-ui,sans-serif;margin:1em;background:#fff;color:#222}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(240px,1fr));gap:1em}
figure{margin:0;border:1px solid #ccc;padding:8px;overflow-wrap:anywhere}img{max-width:100%;height:auto}
.edge{color:#b35a00}.cloud{color:#1a5fbf}small{color:#666}"""


def said(signature: CaseSignature, outputs: Mapping[str, Array]) -> str:
    """One answer in a few words: the class and its probability, the boxes, or the first numbers."""
    answer = signature.answer
    if answer is None or answer.name not in outputs:
        return "–"
    array = outputs[answer.name]
    if answer.kind == "detections":
        names = [label_of(int(box[5]), answer.labels) for box in found_boxes(array)]
        return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "no box"
    if answer.kind in ("probabilities", "logits"):
        best = one_class(answer, array)
        return "no single class" if best is None else f"{label_of(best[0], answer.labels)} {best[1]:.0%}"
    return " ".join(f"{value:.4g}" for value in array.ravel()[:4].tolist()) if array.dtype.kind in "fiub" else "bytes"


def thumbnail(case: CollectedCase) -> Image.Image | None:
    """The case's first picture with the boxes of both sides, at most 224 pixels a side; None without one."""
    image = _picture(case)
    if image is None:
        return None
    image = image.copy()
    image.thumbnail((_SIDE, _SIDE))
    draw = ImageDraw.Draw(image)
    answer = case.facts.signature.answer
    if answer is not None and answer.kind == "detections":
        for side, outputs in (("edge", case.edge_outputs()), ("cloud", case.cloud_outputs())):
            for box in found_boxes(outputs[answer.name]) if answer.name in outputs else ():
                corners = (box[:4] * np.array([image.width, image.height] * 2)).tolist()
                draw.rectangle((corners[0], corners[1], max(corners[0], corners[2]), max(corners[1], corners[3])),
                               outline=_COLORS[side])  # fmt: skip
    return image


def html_sheet(cases: Iterable[CollectedCase]) -> bytes:
    """A self-contained page that includes the pictures. One case at a time is held."""
    figures = []
    for case in cases:
        image, facts = _tried(case), case.facts
        shown = f"<p>{html.escape(_instead(case))}</p>"
        if image is not None:
            file = io.BytesIO()
            image.save(file, "PNG")
            shown = f'<img alt="" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'
        edge, cloud, *others = map(html.escape, _texts(case))
        figures.append(
            f'<figure id="{facts.id}">{shown}<figcaption><div class="edge">{edge}</div><div class="cloud">{cloud}</div>'
            f"<div>{'<br>'.join(others[:1])}</div><small>{'<br>'.join(others[1:])}<br>{facts.id}</small></figcaption></figure>"
        )
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Cases</title><style>{_STYLE}</style>'
        f"<h1>{count_of(len(figures), 'case')}</h1><main>{''.join(figures)}</main></html>\n"
    )
    return page.encode("utf-8", "backslashreplace")


def png_sheet(cases: Iterable[CollectedCase], most: int) -> bytes:
    """One picture of all cases, six per row, with room for `most`. One case at a time is held."""
    line, gap = 12, 8
    height = _SIDE + _LINES * line + 2 * gap
    columns = min(_COLUMNS, most)
    rows = -(-most // columns)
    sheet = Image.new("RGB", (columns * (_SIDE + gap) + gap, rows * height + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for number, case in enumerate(cases):
        left, top = gap + number % columns * (_SIDE + gap), gap + number // columns * height
        image = _tried(case)
        if image is None:
            lines = textwrap.wrap(_instead(case), _SIDE // 6, max_lines=_SIDE // 15, placeholder=" …")
            draw.text((left, top), _latin("\n".join(lines)), fill="black")
        else:
            sheet.paste(image, (left, top))
        for index, text in enumerate(_texts(case)[:_LINES]):
            color = tuple(_COLORS.values())[index] if index < 2 else (0, 0, 0)
            draw.text((left, top + _SIDE + 2 + index * line), _latin(text)[: _SIDE // 6], fill=color)
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _latin(text: str) -> str:
    """What Pillow's own font has of a text."""
    return text.encode("latin-1", "replace").decode("latin-1")


def _instead(case: CollectedCase) -> str:
    """What a case without a picture shows: its text."""
    try:
        text = case.text()
    except InvalidRequest:
        text = None
    return "no picture" if text is None else textwrap.shorten(text, _MOST_TEXT, placeholder=" …")


def _texts(case: CollectedCase) -> list[str]:
    facts = case.facts
    hardness = "" if facts.hardness is None or facts.hard is None else f" ({facts.hard.measure} {facts.hardness:.3f})"
    try:
        sides = [
            f"edge: {said(facts.signature, case.edge_outputs())}",
            f"cloud: {said(facts.signature, case.cloud_outputs())}",
        ]
    except InvalidRequest as error:
        sides = [f"edge: {error}", "cloud: –"]
    tags = " ".join(f"{name}={value}" for name, value in facts.tags.items())
    return [*sides, f"{', '.join(facts.why)}{hardness}", f"{facts.model} {tags}".rstrip(), facts.source]


def _tried(case: CollectedCase) -> Image.Image | None:
    """The thumbnail; None for a picture that cannot be decoded, which may be a case, too."""
    try:
        return thumbnail(case)
    except InvalidRequest:
        return None


def _picture(case: CollectedCase) -> Image.Image | None:
    for data in case.pictures().values():
        pixels = decode(data, "rgb", DEFAULT_MAX_PIXELS)
        return Image.fromarray(pixels)
    for array in case.inputs().values():
        grey = np.squeeze(array)
        if grey.ndim == 2 and min(grey.shape) > 1 and grey.dtype.kind in "fiu" and np.isfinite(grey).all():
            low, high = float(grey.min()), float(grey.max())
            scaled = (grey.astype(np.float64) - low) * (255 / (high - low) if high > low else 0)
            return (
                Image.fromarray(scaled.astype(np.uint8)).resize((_SIDE, _SIDE), Image.Resampling.NEAREST).convert("RGB")
            )
    return None
