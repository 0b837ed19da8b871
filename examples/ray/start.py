"""The cloud service on a running Ray cluster: this folder's cloud.yaml, with two to eight replicas."""

from __future__ import annotations

from pathlib import Path

import ray

from upwell.cloud.config import CloudConfig
from upwell.cloud.ray import serve
from upwell.shared.config.yaml import load_yaml

ray.init(address="auto")
config = load_yaml(Path("cloud.yaml"), CloudConfig)
serve.start(config, serve.Scale(min_replicas=2, max_replicas=8), request_timeout_s=30)
