"""What every engine does in the same way, on JAX."""

import pytest

pytest.importorskip("jax")

from tests.contract.engines.test_contract import *  # noqa: F403  the suite, with the `engine` of this folder
