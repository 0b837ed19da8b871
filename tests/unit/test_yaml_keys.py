"""A misspelt key is reported where it stands: each key of every file that the documentation shows, in turn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from upwell.cloud.config import CloudConfig
from upwell.edge.config import AgentConfig
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.config.yaml_tree import Tree, read_tree
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.signature.model_yaml import ModelDescription

KINDS: dict[str, type[BaseModel]] = {
    "agent.yaml": AgentConfig,
    "cloud.yaml": CloudConfig,
    "policy.yaml": Policy,
    "model.yaml": ModelDescription,
}
DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^( *)```yaml title=(\S+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def shown() -> Iterator[tuple[str, str, str]]:
    """Page, kind and text of each file in the documentation that can be read as it stands."""
    for page in sorted(DOCS.glob("*.md")):
        for indent, named, text in BLOCK.findall(page.read_text()):
            title = Path(named).name
            if title not in KINDS:
                continue
            text = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
            try:
                parse_yaml(text, KINDS[title], DOCS / title)
            except ConfigError:
                continue  # part of a file, or one that names what is not there
            yield page.stem, title, text


def keys(tree: Tree) -> Iterator[tuple[str, int, int]]:
    """Every key of a file with its line and column."""
    for key, (line, column) in tree.keys.items():
        yield key, line, column
    for part in tree.parts.values():
        yield from keys(part)


FILES = list(shown())


@pytest.mark.parametrize(
    ("page", "title", "text"), FILES, ids=[f"{page}-{index}" for index, (page, *_) in enumerate(FILES)]
)
def test_every_key_that_is_misspelt_is_reported_at_its_place(page: str, title: str, text: str) -> None:
    for key, line, column in keys(read_tree(text, None)):
        lines = text.splitlines()
        row = lines[line - 1]
        at = column - 1 + (row[column - 1] in "\"'")
        assert row.startswith(key, at)
        lines[line - 1] = f"{row[:at]}x{row[at:]}"
        try:
            parse_yaml("\n".join(lines), KINDS[title], DOCS / title)
        except ConfigError as error:
            unknown = [one for one in error.problems if "unknown key" in one.message]
            places = [(one.line, one.column) for one in unknown if one.key.endswith(f"x{key}")]
            assert not unknown or places == [(line, column)], (key, unknown)


def test_the_files_cover_what_users_write() -> None:
    assert {title for _, title, _ in FILES} == set(KINDS)


SECTIONS = [
    ("policy.yaml", "defaults: {hard: {mesure: margin}}", 1, 19, "defaults.hard.mesure"),
    ("policy.yaml", "defaults: {hard: {below: 0.2, mesure: margin}}", 1, 31, "defaults.hard.mesure"),
    ("policy.yaml", "models:\n  a:\n    hard:\n      below: 0.2\n      mesure: margin", 5, 7, "models.a.hard.mesure"),
    ("policy.yaml", "rules: [{name: a, match: {}, set: {hard: {bellow: 0.1}}}]", 1, 43, "rules[0].set.hard.bellow"),
    ("policy.yaml", "defaults: {large: {abov: 1KiB}}", 1, 20, "defaults.large.abov"),
    ("policy.yaml", "defaults: {hedge: {aftr: p95}}", 1, 20, "defaults.hedge.aftr"),
    ("policy.yaml", "defaults: {source: {tagg: a}}", 1, 21, "defaults.source.tagg"),
    ("policy.yaml", "defaults: {record: {kep: 1MiB}}", 1, 21, "defaults.record.kep"),
    ("policy.yaml", "defaults: {budget: {uplnk: 1MB/day}}", 1, 21, "defaults.budget.uplnk"),
    (
        "model.yaml",
        "signature: {inputs: {x: {kind: tensor, dtyp: FP32}}, outputs: {}}",
        1,
        40,
        "signature.inputs.x.dtyp",
    ),
    ("model.yaml", "pre: [{resize: {too: [1, 1]}}]", 1, 17, "pre[0].resize.too"),
    ("model.yaml", "pre: [{resiz: {to: [1, 1]}}]", 1, 8, "pre[0].resiz"),
    ("policy.yaml", "defaults: {on_cloud_failure: {defalt: edge}}", 1, 31, "defaults.on_cloud_failure.defalt"),
]


@pytest.mark.parametrize(("title", "text", "line", "column", "key"), SECTIONS)
def test_a_misspelt_key_of_a_section_that_may_be_off_is_reported_at_its_place(
    title: str, text: str, line: int, column: int, key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, KINDS[title])
    (problem,) = (one for one in caught.value.problems if "unknown key" in one.message)
    assert (problem.line, problem.column, problem.key) == (line, column, key)
    assert "expected 'off'" not in problem.message
