"""`upwell serve --print-config`: what is in force, as a file that says the same."""

from __future__ import annotations

import io
import json

from ruamel.yaml import YAML

from upwell.cloud.config import CloudConfig
from upwell.shared.units import seconds_as_written


def printed(config: CloudConfig, *, as_json: bool) -> str:
    """The configuration with all defaults, as YAML or JSON that reads back as the same. Of secrets it holds the paths.

    What depends on the machine (`instances`) is left out where it is not written, so that it goes on to depend on it.
    """
    written = config.as_written()
    written["serve"]["max_connection_age"] = seconds_as_written(config.serve.connection_age_s or 0.0)
    if as_json:
        return json.dumps(written)
    yaml, buffer = YAML(), io.StringIO()
    yaml.width = 1 << 20
    yaml.dump(written, buffer)
    return buffer.getvalue().rstrip("\n")
