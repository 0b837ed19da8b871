"""What travels with the models of a bundle: `calibrations.yaml` and `reference.json`.

The first has calibrated thresholds, the second the statistics of the rows when the bundle was made, for drift.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from ruamel.yaml import YAML

from upwell.edge.bundle.bundle import CALIBRATIONS_NAME, REFERENCE_NAME
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.files import plain_file, read_file
from upwell.shared.routing.policy.calibrations import Calibration
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.policy_keys import Section

if TYPE_CHECKING:
    from upwell.shared.routing.drift.drift_reference import DriftReference


class CalibrationsFile(Section):
    """A whole `calibrations.yaml`: the list that `upwell policy calibrate` writes into a policy, on its own."""

    version: Literal[1] = Field(1, description="Version of this file format.")
    calibrations: Annotated[list[Calibration], Field(description="As in a policy.")]


def load_calibrations(folder: Path) -> tuple[Calibration, ...]:
    """The calibrations of the bundle in `folder`; empty without such a file. Raises `ConfigError`."""
    path = folder / CALIBRATIONS_NAME
    if not os.path.lexists(path):
        return ()
    found = load_yaml(path, CalibrationsFile, within=folder).calibrations
    if len({one.key() for one in found}) < len(found):
        raise ConfigError.at(path, "two calibrations are for the same models, measure and target", "calibrations")
    return tuple(found)


def calibrations_text(policy: Path, digests: Collection[str], name: str) -> str:
    """The `calibrations.yaml` with those calibrations of a policy that are for models with these digests.

    A calibration without a digest of the device's model is included if it is for the model called `name`. Raises
    `ConfigError` if none matches.
    """
    found = [
        one
        for one in load_yaml(policy, Policy).calibrations
        if one.edge_digest in digests or (not one.edge_digest and one.model == name)
    ]
    if not found:
        raise ConfigError.at(policy, "none of its calibrations is for a model of this bundle", "calibrations")
    return _text(found)


def _text(calibrations: Sequence[Calibration]) -> str:
    yaml, buffer = YAML(), io.StringIO()
    yaml.width = 1 << 20
    written = [one.model_dump(mode="json", exclude_unset=True) for one in calibrations]
    yaml.dump({"version": 1, "calibrations": written}, buffer)
    return buffer.getvalue()


MAX_BYTES = 1 << 20


def load_reference(folder: Path) -> DriftReference | None:
    """The reference of the bundle in `folder`; None without such a file. Raises `ConfigError`."""
    path = folder / REFERENCE_NAME
    if not os.path.lexists(path):
        return None
    from upwell.shared.routing.drift.drift_reference import DriftReference

    try:
        data = read_file(plain_file(folder, REFERENCE_NAME), "the reference for drift", MAX_BYTES)
        return DriftReference.read(data)
    except ValueError as error:
        raise ConfigError.at(path, f"not a reference written by `upwell model reference`: {error}") from None
