"""YAML files: every problem at once, each with its place and plain words; nothing hostile gets through."""

import difflib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, RootModel, field_validator, model_validator
from pydantic_core import CoreSchema

from upwell.shared.config.addresses import without_secrets
from upwell.shared.config.yaml import MAX_FILE_BYTES, FilePart, RelativePath, load_yaml, parse_yaml, resolve
from upwell.shared.config.yaml_problems import MAX_ERRORS
from upwell.shared.config.yaml_tree import MAX_DEPTH, MAX_NODES, read_tree
from upwell.shared.errors import ConfigError
from upwell.shared.units import Seconds


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Onnx(Part):
    type: Literal["onnx"]
    threads: int = 1


class Tflite(Part):
    type: Literal["tflite"]
    delegates: list[str] = []
    onnx: int = 0


class Numbers(RootModel[list[int]]):
    pass


class File(Part):
    name: str = ""
    threads: int = Field(default=1, ge=1, le=64)
    deadline: Seconds = 1.0
    on: bool = False
    level: Literal["low", "high"] = "low"
    runtime: Annotated[Onnx | Tflite, Field(discriminator="type")] | None = None
    models: dict[str, Annotated[Onnx | Tflite, Field(discriminator="type")]] = {}
    split: Literal["off", "auto"] | Onnx = "off"
    after: Literal["p95"] | Seconds = "p95"
    pair: tuple[int, int] = (0, 0)
    numbers: Numbers = Numbers([])
    items: list[Onnx] = Field(default=[], max_length=3)
    source: str = Field(default="", alias="from")
    ca: RelativePath | None = None
    limits: dict[int, float] = {}

    @field_validator("name")
    @classmethod
    def _no_spaces(cls, value: str) -> str:
        if " " in value:
            raise ValueError("a name has no spaces")
        return value

    @model_validator(mode="after")
    def _known_pair(self) -> "File":
        if self.pair == (6, 6):
            raise ValueError("pair must not be 6, 6")
        return self


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, File, Path("/etc/x.yaml"))
    assert all(problem.path == Path("/etc/x.yaml") for problem in caught.value.problems)
    return [str(problem).removeprefix("/etc/x.yaml:").strip() for problem in caught.value.problems]


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("# ü\nname: a\nca: ../ca.pem\nfrom: 'yes'\nmodels: {1: {type: onnx, threads: 0x10}}\nafter: 80ms\n")
    file = load_yaml(path, File)
    assert file.name == "a"
    assert file.source == "yes"
    assert file.ca == tmp_path.parent / "ca.pem"
    assert file.models == {"1": Onnx(type="onnx", threads=16)}
    assert file.after == 0.08


def test_all_problems_at_once_in_the_order_of_the_file() -> None:
    assert problems(
        "thread: 3\n"
        "threads: 0\n"
        "level: medium\n"
        "models:\n"
        "  a: {type: onnx, thread: 1}\n"
        "  b: {type: tflite, delegates: [1]}\n"
        "deadline: 80MS\n"
        "name: 12\n"
    ) == [
        "1:1: thread: unknown key; did you mean 'threads'?",
        "2:10: threads: expected 1 or more, got 0",
        "3:8: level: expected 'low' or 'high', got 'medium'",
        "5:19: models.a.thread: unknown key; did you mean 'threads'?",
        "6:33: models.b.delegates[0]: expected text, got 1; put it in quotes",
        "7:11: deadline: unknown unit 'MS'; write 80ms (case matters)",
        "8:7: name: expected text, got 12; put it in quotes",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "zzz: 1",
            "1:1: zzz: unknown key; expected one of: after, ca, deadline, from, items, level, limits, models, name, "
            "numbers, on, pair, runtime, split, threads",
        ),
        ("runtime: {}", "1:10: runtime.type: this key is missing"),
        ("runtime: {type: cuda}", "1:17: runtime.type: expected one of 'onnx', 'tflite', got 'cuda'"),
        ("runtime: 3", "1:10: runtime: expected keys and values, got 3"),
        ("runtime: {type: tflite, onnx: x}", "1:31: runtime.onnx: expected a whole number, got 'x'"),
        (
            "runtime: {type: tflite, threads: 1}",
            "1:25: runtime.threads: unknown key; expected one of: delegates, onnx, type",
        ),
        ("models: {onnx: {type: onnx, threads: q}}", "1:38: models.onnx.threads: expected a whole number, got 'q'"),
        ("split: of", "1:8: split: expected 'off' or 'auto' or keys and values, got 'of'"),
        ("split: {type: onnx, thread: 1}", "1:21: split.thread: unknown key; did you mean 'threads'?"),
        ("pair: [1]", "1:7: pair[1]: this item is missing"),
        ("pair: [1, 2, 3]", "1:7: pair: expected at most 2 items, got a list"),
        ("pair: [6, 6]", "1:1: pair must not be 6, 6"),
        ("numbers: [1, a]", "1:14: numbers[1]: expected a whole number, got 'a'"),
        ("items: [{type: onnx}, {typo: 1, type: onnx}]", "1:24: items[1].typo: unknown key; did you mean 'type'?"),
        ("items: 3", "1:8: items: expected a list, got 3"),
        ("on: maybe", "1:5: on: expected true or false, got 'maybe'"),
        ("threads: 1.5", "1:10: threads: expected a whole number, got 1.5"),
        ("threads: .inf", "1:10: threads: expected a finite number, got .inf"),
        ("threads: null", "1:10: threads: expected a whole number, got nothing"),
        ("name: a b", "1:7: name: a name has no spaces"),
        ("ca: 3", "1:5: ca: expected a path, got 3"),
        ("ca: ''", "1:5: ca: expected a path, got ''"),
        ("limits: {a: 1}", "1:10: limits.a: expected a whole number, got 'a'"),
        ("models: {a: 1, a: 2, b: {type: 1, type: 2}}", "1:16: models.a: the key is repeated; first in line 1"),
    ],
)
def test_one_problem_in_plain_words(text: str, expected: str) -> None:
    assert problems(text)[0] == expected


def test_a_union_of_a_quantity_and_a_word_is_told_once() -> None:
    assert problems("after: p9") == [
        "1:8: after: expected a duration such as 80ms, 1.5s, 2m or 1h, got 'p9'; or expected 'p95'"
    ]


def test_a_list_is_not_also_too_short_for_its_wrong_items() -> None:
    class Several(BaseModel):
        numbers: tuple[int, ...] = Field(min_length=1)

    for text, expected in (
        ("numbers: [a]", "numbers[0]: expected a whole"),
        ("numbers: []", "numbers: expected 1 or more"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_yaml(text, Several)
        (problem,) = caught.value.problems
        assert expected in str(problem)


def test_every_duplicate_key_is_told() -> None:
    assert problems("name: a\nname: b\nmodels: {a: {type: onnx, type: onnx}}\n") == [
        "2:1: name: the key is repeated; first in line 1",
        "3:26: models.a.type: the key is repeated; first in line 3",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("null", "the file is empty"),
        ("- a", "1:1: expected keys and values at the top, got a list"),
        ("text", "1:1: expected keys and values at the top, got 'text'"),
        ("a: [1", "1:6: not valid YAML: expected ',' or ']'"),
        ("a: b: c", "1:5: not valid YAML: mapping values are not allowed here"),
        ("a: 1\n\tb: 2", "2:1: not valid YAML: found character '\\t' that cannot start any token"),
        ("a: 1\n\tb: 2", "; indent with spaces"),
        ("a: 'open", "not valid YAML: found unexpected end of stream"),
        ("name: \x07", "1: character 7 is not allowed in YAML"),
        ("a: 1\n---\nb: 2", "2:1: a second document starts here"),
        ("%YAML 1.1\n---\nname: a", "read as YAML 1.2"),
        ("name: !!python/object/apply:os.system [x]", "the tag 'tag:yaml.org,2002:python/object/apply:os.system' is"),
        ("name: !!str 5", "the tag 'tag:yaml.org,2002:str' is not allowed"),
        ("!x name: 5", "the tag '!x' is not allowed; write the plain key"),
        ("<<: {name: a}", "merge keys"),
        ("? [a, b]\n: 1", "a key must be plain text"),
        ("name: *a", "the alias *a refers to no earlier"),
        ("items: &a [*a]", "the alias *a refers to no earlier"),
        ("items: " + "[" * 400, f"nested deeper than {MAX_DEPTH} levels"),
        ("items: " + "[" * 400_000, f"nested deeper than {MAX_DEPTH} levels"),
    ],
)
def test_what_is_no_usable_yaml(text: str, words: str) -> None:
    (problem,) = problems(text)
    assert words in problem


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert f"more than {MAX_NODES} values" in problems("\n".join(lines))[0]


def test_an_alias_is_the_value_of_its_anchor() -> None:
    file = parse_yaml("models: {a: &m {type: onnx, threads: 2}, b: *m}", File)
    assert file.models["a"] == file.models["b"]


def test_folded_text_has_blanks_where_its_lines_end() -> None:
    tree = read_tree("a: >-\n  one\n  two\n\n  three\nb: |\n  one # two\n  three\nc: one\n  two\n", None)
    assert tree.value == {"a": "one two\nthree", "b": "one # two\nthree\n", "c": "one two"}


@pytest.mark.parametrize(
    ("text", "value"),
    [("yes", "yes"), ("'1'", "1"), ("2001-12-14", "2001-12-14"), ("1:30", "1:30"), ("1_000", "1_000"), ("0o", "0o")],
)
def test_yaml_1_2_scalars_that_stay_text(text: str, value: str) -> None:
    assert parse_yaml(f"name: {text}", File).name == value


@pytest.mark.parametrize(("text", "value"), [("0o17", 15), ("0x1F", 31), ("+7", 7), ("010", 10), ("1e1", 10)])
def test_yaml_1_2_numbers(text: str, value: int) -> None:
    assert parse_yaml(f"threads: {text}", File).threads == value


def test_an_endless_number_stays_text() -> None:
    assert "expected a whole number, got '999" in problems("threads: " + "9" * 100_000)[0]
    assert "expected a whole number, got '1e999'" in problems("threads: 1e999")[0]


def message(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_yaml(path, File)
    return str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert message(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: no such file"
    assert message(tmp_path) == f"{tmp_path}: this is a folder; expected a YAML file"
    assert "cannot be read" in message(Path("/nul\0l"))
    (tmp_path / "latin.yaml").write_bytes(b"name: a\n# caf\xe9\n")
    assert message(tmp_path / "latin.yaml") == f"{tmp_path}/latin.yaml:2: not UTF-8 text; save the file as UTF-8"
    with (tmp_path / "huge.yaml").open("wb") as file:
        os.truncate(file.fileno(), MAX_FILE_BYTES + 1)
    assert "larger than 1048576 bytes" in message(tmp_path / "huge.yaml")
    assert "larger than 1048576 bytes" in message(Path("/dev/zero"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: a")
    (tmp_path / "x.yaml").chmod(0)
    assert "cannot be read: Permission denied" in message(tmp_path / "x.yaml")


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfname: a\r\n")
    assert load_yaml(tmp_path / "x.yaml", File).name == "a"


def test_paths_start_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.chdir(tmp_path)
    assert resolve("a/../b", Path("/etc/upwell")) == Path("/etc/upwell/b")
    assert resolve("/abs", Path("/etc")) == Path("/abs")
    assert resolve("~/x", Path("/etc")) == Path("/home/u/x")
    assert resolve("x", Path("conf")) == tmp_path / "conf/x"
    assert parse_yaml("ca: x", File).ca == tmp_path / "x"
    with pytest.raises(ValueError, match="home folder that does not exist"):
        resolve("~nobody-of-that-name/x", Path())


def test_however_much_is_wrong_the_text_is_bounded() -> None:
    text = f"deadline: 1{'x' * 100_000}\n" + "".join(f"{'k' * 1000}{number}: 1\n" for number in range(300))
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, File)
    assert len(caught.value.problems) == 301
    lines = str(caught.value).splitlines()
    assert len(lines) == 101
    assert len(lines[0]) == 4000
    assert lines[-1] == "and 201 more"


def test_a_long_value_is_shown_by_its_beginning_also_where_a_validator_tells_of_it() -> None:
    (problem,) = problems(f"deadline: {'x' * 3000}")
    assert "got 'xxx" in problem
    assert len(problem) < 200


def test_only_some_of_very_many_errors_are_put_into_words(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def compare(key: str, _known: object, **_more: object) -> list[str]:
        compared.append(key)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", compare)
    with pytest.raises(ConfigError) as caught:
        parse_yaml("".join(f"k{number}: 1\n" for number in range(5000)), File)
    assert len(compared) == len(caught.value.problems) == MAX_ERRORS
    assert str(caught.value).splitlines()[-1] == "and 4900 more"


class SlowToBuild:
    builds: ClassVar[list[object]] = []

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        self.builds.append(source)
        time.sleep(0.05)  # so that all threads come meanwhile
        return handler(source)


class Slow(FilePart):
    number: Annotated[int, SlowToBuild()] = 1


def test_threads_that_use_a_section_first_at_the_same_time_wait_for_its_validator() -> None:
    """pydantic before 2.14 builds it in each of them, and meanwhile refuses valid keys or gives half an object."""
    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(Slow.model_validate, [{}] * 8)] == [Slow()] * 8
    assert SlowToBuild.builds == [int]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://u:pw@h/x", "https://…@h/x"),
        ("ht!tp:/u:p/w@h", "…@h"),
        ("u:pw@h:1", "…@h:1"),
        ("https://h/x?token=pw&y", "https://h/x?…"),
        ("oci://u:pw@h/x:1@sha256:ab", "oci://…@h/x:1@sha256:ab"),
        ("plain:text", "plain:text"),
        ("https:/user:a://b@h", "…@h"),
        ("https:/collector?api_key=pw", "https:/collector?…"),
        ("h/x?token=a b", "h/x?…"),
        ("https://h/x?mail=a@b.example&token=pw", "https://…"),
        ("u:p?w@h:1", "…"),
        ("h/x?mail=a@sha256:b&token=pw", "h/x?…"),
        ("https://h/a b?token=pw", "https://h/a b?…"),
        ("x > 1 ? a", "x > 1 ? a"),
        ("why?", "why?"),
    ],
)
def test_a_value_that_is_shown_hides_what_may_be_a_password(value: str, shown: str) -> None:
    assert without_secrets(value) == shown
    (problem,) = problems(f"level: '{value}'")
    assert f"{shown!r}" in problem
