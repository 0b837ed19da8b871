from __future__ import annotations

import pytest

from upwell.shared.errors import ExtraMissing


def test_a_missing_package_names_the_extra_that_brings_it() -> None:
    text = r"it needs nowhere: pip install 'upwell\[torch\]'"
    with pytest.raises(ExtraMissing, match=text), ExtraMissing.on_import("torch", "it needs PACKAGE"):
        import nowhere.at_all  # type: ignore[import-not-found]  # noqa: F401


def test_a_broken_package_is_told_with_its_reason() -> None:
    text = r"it needs math \(cannot import name 'nothing'.*: pip install"
    with pytest.raises(ExtraMissing, match=text), ExtraMissing.on_import("torch", "it needs PACKAGE"):
        from math import nothing  # type: ignore[attr-defined]  # noqa: F401


def test_an_import_of_our_own_that_fails_is_no_missing_package() -> None:
    text = "no_such_thing"
    with pytest.raises(ImportError, match=text), ExtraMissing.on_import("torch", "it needs PACKAGE"):
        from upwell.shared import no_such_thing  # type: ignore[attr-defined]  # noqa: F401
