"""Make the programs that the serving tests serve, and what torch answers, from the networks of `upwell demo`.

    make jax-models

Writes models/digits.jax, models/digits-tail.jax (programs; their weights are the demo's own safetensors) and
models/reference.npz (inputs and torch's answers).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from tests.jax.torch_networks import LargeNetTail
from upwell.cloud.engines.torch.demo import LargeNet
from upwell.shared.files import write_whole
from upwell.tools.export.torch_network import load_module
from upwell.tools.export.torch_to_jax import PLATFORMS, exported, largest_error

FOLDER = Path(__file__).with_name("models")
WEIGHTS = Path(__file__).parents[2] / "shared/upwell/tools/demo/assets/cloud/digits-large/1/model.safetensors"
NETWORKS = {"digits": LargeNet, "digits-tail": LargeNetTail}
LARGEST_ERROR = 1e-5


def main() -> int:
    """Make everything; 1 where a program does not answer as torch does."""
    for name, network in NETWORKS.items():
        module = load_module(f"{network.__module__}.{network.__qualname__}", WEIGHTS, {})
        program = exported(module, PLATFORMS)
        error = largest_error(program, module, (1, 3))
        print(f"{name}: {len(program.data)} bytes, relative error {error:.2g}")
        if not error <= LARGEST_ERROR:
            return 1
        write_whole(FOLDER / f"{name}.jax", program.data)
    x = np.random.default_rng(0).random((5, 32, 32, 1), np.float32).round(2)
    with torch.inference_mode():
        logits = load_module(f"{LargeNet.__module__}.LargeNet", WEIGHTS, {})(torch.from_numpy(x)).numpy()
    np.savez_compressed(FOLDER / "reference.npz", x=x, logits=logits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
