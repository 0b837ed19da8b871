"""Paths in bundles mean one file, inside the bundle, on every system."""

from __future__ import annotations

import itertools
import posixpath
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from upwell.edge.bundle.bundle import MAX_PATH_CHARS, first_clash, why_unfit


@pytest.mark.parametrize(
    "path",
    [
        "model.onnx",
        "a/b/c",
        "Labels 2.txt",
        "_x",
        "a,b",
        "v1.2-rc+3@home=1.bin",
        "x" * MAX_PATH_CHARS,
        "console",
        "com0",
    ],
)
def test_plain_paths_fit(path: str) -> None:
    assert why_unfit(path) == ""


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/passwd", "points outside"),
        ("../x", "points outside"),
        ("a/../../x", "points outside"),
        ("a/..", "points outside"),
        (".", "hidden"),
        ("a/./b", "hidden"),
        (".git/config", "hidden"),
        ("", "expected names"),
        ("a//b", "expected names"),
        ("a/", "expected names"),
        ("a\\b", "expected names"),
        ("c:x", "expected names"),
        ("x:stream", "expected names"),
        ("a\0b", "expected names"),
        ("a\nb", "expected names"),
        ("-rf", "expected names"),
        ("~root", "expected names"),
        ("x.", "expected names"),
        ("x ", "expected names"),
        ("é", "expected names"),
        ("nul.txt", "device"),
        ("a/COM1", "device"),
        ("x" * (MAX_PATH_CHARS + 1), "longer"),
    ],
)
def test_other_paths_say_why_not(path: str, why: str) -> None:
    assert why in why_unfit(path)


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("./\\~:aZ0 -\n\0é") | st.characters(), max_size=12))
@example("a/../b")
def test_no_path_that_fits_leaves_its_folder(path: str) -> None:
    if not why_unfit(path):
        assert posixpath.normpath(f"/bundle/{path}") == f"/bundle/{path}"
        assert set(path) <= set(string.ascii_letters + string.digits + "_+@=., -/")


def clashes(files: list[str], folders: list[str]) -> bool:
    """The same by comparing every pair: what a system that ignores case would put into one place."""
    nodes: list[tuple[str, bool]] = []
    for path, is_file in [*((one, True) for one in files), *((one, False) for one in folders)]:
        parents = list(itertools.accumulate(path.split("/"), lambda left, right: f"{left}/{right}"))
        nodes += [*((parent, False) for parent in parents[:-1]), (path, is_file)]
    return any(
        one[0].lower() == other[0].lower() and (one[0] != other[0] or one[1] or other[1])
        for one, other in itertools.combinations(nodes, 2)
    )


_paths = st.lists(st.sampled_from("abA"), min_size=1, max_size=3).map("/".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(_paths, max_size=4), st.lists(_paths, max_size=3))
def test_clashes_are_those_of_every_pair(files: list[str], folders: list[str]) -> None:
    assert (first_clash(files, folders) is not None) == clashes(files, folders)
