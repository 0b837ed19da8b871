"""docs/bundles.md says what is so."""

from __future__ import annotations

from tests.unit.test_docs import ROOT, names, prose
from upwell.edge.bundle.archive import MAX_BYTES, MAX_ENTRIES
from upwell.edge.bundle.bundle import Refusal
from upwell.tools.bundle.cli import PASSPHRASE_VARIABLE

PAGE = ROOT / "docs" / "bundles.md"


def test_every_refusal_is_explained() -> None:
    assert names(PAGE, "refusal") == [refusal.value for refusal in Refusal]


def test_figures_and_names_are_those_of_the_code() -> None:
    assert f"more than {MAX_BYTES >> 30} GiB or {MAX_ENTRIES:,} files" in prose(PAGE)
    assert f"`{PASSPHRASE_VARIABLE}`" in prose(PAGE)
