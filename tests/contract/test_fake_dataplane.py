from __future__ import annotations

import numpy as np
import pytest

from tests.contract.dataplane import ContractSubject, StreamedContract
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.tensors import DTYPES


class TestFakeDataplane(StreamedContract):
    @pytest.fixture
    def subject(self) -> ContractSubject:
        inputs = {name.lower(): np.ones((2, 3)).astype(dtype) for name, dtype in DTYPES.items()}
        inputs["bytes"] = np.array([[b"", b"a", b"\0"], [b"\xff" * 300, b"d", b"e"]], dtype=np.object_)
        return ContractSubject(FakeDataplane(), "echo", inputs, misshapen=None)
