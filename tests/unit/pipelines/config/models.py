"""The models of the right files, as a pipeline must know them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from upwell.pipelines.config.model_signatures import SignatureFacts

CLASSES = MappingProxyType(dict.fromkeys(("label", "score", "route", "reason", "id", "case"), ()))
"""The fields of an answer of classes."""

MODELS: Mapping[str, SignatureFacts] = MappingProxyType(
    {
        "people": SignatureFacts("detections", ("person", "face", "car"), has_cloud=True),
        "helmet": SignatureFacts("probabilities", ("none", "hard", "soft"), fields=CLASSES),
        "digits": SignatureFacts("logits"),
        "scent": SignatureFacts("tensor", takes_picture=False),
        "swing": SignatureFacts(
            "probabilities", ("still", "shaken"), takes_picture=False, tensor=(128, 3), fields=CLASSES
        ),
        "far": SignatureFacts(None, takes_picture=None, has_cloud=True),
    }
)
