"""Numbers that the test models of every runtime share."""

from __future__ import annotations

import numpy as np

from upwell.shared.tensors import Array


def linear_weights(seed: int = 0, features: int = 8, classes: int = 3) -> tuple[Array, Array]:
    """The weights [features, classes] and the bias [classes] of `linear` with the same arguments."""
    random = np.random.default_rng(seed)
    weights = random.standard_normal((features, classes), np.float32)
    return weights, random.standard_normal(classes, np.float32)
