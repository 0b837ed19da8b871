"""The documents say what is so: links, examples, tables, and the files, names and texts they mention."""

from __future__ import annotations

import ast
import json
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points, metadata
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from pydantic import BaseModel
from typer.core import TyperGroup
from typer.main import get_command

from tests.pipelines_run import MadeSource
from tests.source_trees import trees
from upwell.cloud.config import CloudConfig
from upwell.edge.bundle.bundle_calibrations import CalibrationsFile
from upwell.edge.config import AgentConfig
from upwell.edge.models.edge_model import LoadReport, ModelHealth
from upwell.edge.observe.agent_metrics import AgentMetrics
from upwell.edge.request.answer import Answer, Timings
from upwell.edge.runtimes.base import Placement
from upwell.fleet.config import FleetConfig
from upwell.pipelines.config.pipelines_config import PipelinesConfig
from upwell.pipelines.events.event_rules import Event, EventRule, EventRules
from upwell.pipelines.run.frame_loop import REASONS, FrameLoop
from upwell.pipelines.run.pipeline_runner import pipeline_families, sink_families
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sinks.outbox_database import OutboxLimits
from upwell.pipelines.sinks.sink_opening import open_sinks
from upwell.pipelines.sinks.sink_settings import JsonlSettings
from upwell.pipelines.steps.geometry import Zones
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import Refused
from upwell.shared.oip.auth.bearer_tokens import TokensConfig
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.routing import reasons
from upwell.shared.routing.decide.router_state import RouterState
from upwell.shared.routing.estimators.audit_alarm import AuditAlarm
from upwell.shared.routing.estimators.circuit_breaker import Breaker
from upwell.shared.routing.estimators.deadline_reserve import reserve_s
from upwell.shared.routing.estimators.link_estimate import fade
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.reasons import DEGRADED, Plan, Reason, Route
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.tools.cli import build_app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])
POLICY, ARCHITECTURE, OPERATIONS, PIPELINES = (
    ROOT / "docs" / f"{name}.md" for name in ("policy", "architecture", "operations", "pipelines")
)
LOADERS: Mapping[str, type[BaseModel]] = MappingProxyType(
    {
        "agent.yaml": AgentConfig,
        "policy.yaml": Policy,
        "cloud.yaml": CloudConfig,
        "fleet.yaml": FleetConfig,
        "tokens.yaml": TokensConfig,
        "model.yaml": ModelDescription,
        "calibrations.yaml": CalibrationsFile,
        "pipelines.yaml": PipelinesConfig,
    }
)
OTHERS = ("upwell_cloud_", "upwell_pipeline_")
"""How the names of metrics begin that are not the agent's own."""
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def spans(page: Path) -> list[str]:
    """The inline code of a page."""
    return SPAN.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def table(page: Path, header: str) -> list[list[str]]:
    """The rows of the tables of a page whose first column is called `header`."""
    rows: list[list[str]] = []
    for block in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE):
        first, _, *others = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        rows += others if first[0] == header else []
    assert rows, f"no table of {header!r} in {page.name}"
    return rows


def names(page: Path, header: str) -> list[str]:
    """The code in the first column of such a table."""
    return [row[0].strip("`") for row in table(page, header)]


# --- Links and examples


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        known = target.startswith("https://") or (file.exists() and (not anchor or anchor in anchors(file)))
        broken += [] if known else [target]
    assert broken == []


def yaml_examples() -> Iterator[tuple[Path, str, str]]:
    """Page, file name and text of each YAML example that says which file it is, in its info string or first line."""
    for page in PAGES:
        for info, text in FENCE.findall(page.read_text(encoding="utf-8")):
            if info.startswith("yaml"):
                named = re.match(r"yaml title=(\S+)", info) or re.match(r"# (\w+\.yaml)\n", text)
                yield page, named[1] if named else "", text


@pytest.mark.parametrize(("page", "name", "text"), [example for example in yaml_examples() if example[1]])
def test_yaml_examples_load(page: Path, name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / Path(name).name
    path.write_text(text, encoding="utf-8")
    load_yaml(path, LOADERS[path.name])


def test_yaml_examples_say_which_file_they_are() -> None:
    pages_of_whole_files = {page.name for page, name, _ in yaml_examples() if name}
    assert pages_of_whole_files >= {"README.md", "quickstart.md", "policy.md"}
    nameless = [page.name for page, name, _ in yaml_examples() if not name and page.name in pages_of_whole_files]
    assert nameless == []


def commands(page: Path) -> Iterator[list[str]]:
    """The words after `upwell` of each command line of a page, in blocks and in the text."""
    for _, block in FENCE.findall(page.read_text(encoding="utf-8")):
        for line in re.findall(r"^(?:\$ )?(?:[\w./]*/)?upwell ([a-z].*)", block.replace("\\\n", " "), re.MULTILINE):
            yield shlex.split(line, comments=True)
    for span in spans(page):
        if re.match(r"upwell [a-z]", span):
            yield span.split()[1:]


@every_page
def test_commands_exist_with_their_options(page: Path) -> None:
    unknown = []
    for words in commands(page):
        command, rest = get_command(build_app(words)), words
        while isinstance(command, TyperGroup) and rest and rest[0] in command.commands:
            command, rest = command.commands[rest[0]], rest[1:]
        is_missing = isinstance(command, TyperGroup) and bool(rest)
        options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        wrong = [word for word in rest if word[:1] == "-" != word and word.partition("=")[0] not in options]
        unknown += [" ".join(words)] if is_missing or wrong else []
    assert unknown == []


@pytest.mark.parametrize("folder", ["docs", "examples", "edge", "cloud", "shared", ".ci"])
def test_extras_exist(folder: str) -> None:
    extras = set(metadata("upwell").get_all("Provides-Extra") or ())
    texts = "".join(
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".md", ".py", ".yaml", ".service") or path.name == "Dockerfile"
    )
    assert set(re.findall(r"extra `([\w-]+)`", texts)) <= extras


# --- The reference


def test_configuration_is_what_the_models_give() -> None:
    script = ROOT / ".ci" / "write_configuration.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_stale_configuration_is_noticed(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / "docs").mkdir()
    script = tmp_path / ".ci" / "write_configuration.py"
    script.write_bytes((ROOT / ".ci" / script.name).read_bytes())
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "run python .ci/write_configuration.py" in done.stderr


@pytest.mark.parametrize(
    "file",
    [
        "agent.yaml",
        "policy.yaml",
        "cloud.yaml",
        "tokens.yaml",
        "pipelines.yaml",
    ],
)
def test_every_key_is_described(file: str) -> None:
    page = "pipelines.md" if file == "pipelines.yaml" else "configuration.md"
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    sections = [part for part in re.split(r"^##+ ", text, flags=re.MULTILINE) if part.splitlines()[0].endswith(file)]
    keys = [line for section in sections for line in section.splitlines() if line.startswith("|`")]
    assert keys
    assert [line for line in keys if line.endswith("||")] == []


# --- The tables of policy.md


def sentences(enum: str) -> dict[str, str]:
    """Value -> docstring of the members of an enum in routing/reasons.py."""
    module = ast.parse(Path(reasons.__file__).read_text(encoding="utf-8"))
    body = next(node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == enum)
    found: dict[str, str] = {}
    value = ""
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            value = str(node.value.value)
            found[value] = ""
        elif value and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[value] = " ".join(str(node.value.value).split())
    return found


@pytest.mark.parametrize(
    ("enum", "header"), [(Reason, "upwell.reason"), (Plan, "upwell.plan"), (Route, "upwell.route")]
)
def test_codes_are_explained_as_in_the_code(enum: type[Reason | Plan | Route], header: str) -> None:
    said = {row[0].strip("`"): row[1] for row in table(POLICY, f"`{header}`")}
    meant = sentences(enum.__name__)
    assert list(said) == [str(member) for member in enum] == list(meant)
    assert {code: text for code, text in said.items() if meant[code]} == {c: text for c, text in meant.items() if text}


def test_degraded_reasons_say_so() -> None:
    said = {row[0].strip("`") for row in table(POLICY, "`upwell.reason`") if row[1].startswith("Degraded: ")}
    assert said == {str(reason) for reason in DEGRADED}


def full_answer() -> Answer:
    """An answer to which every fact applies."""
    timings = Timings(total_s=0.1, edge_s=0.01, uplink_s=0.05, cloud_queue_s=0.001, cloud_compute_s=0.02)
    routes = (Route.EDGE, Route.CLOUD)
    return Answer(
        {}, Route.MIXED, Reason.CLOUD_ERROR, True, Plan.CASCADE, timings, "1", routes, "sha256:0", "sha256:1",
        accelerator="cpu", edge_state="ready", cut="c1", hardness=(0.25,), agent="dock-7", version="1.0",
    )  # fmt: skip


def test_response_parameters_are_listed_with_their_types() -> None:
    kinds = {name: type(value) for name, value in full_answer().parameters().items()}
    assert sorted(names(POLICY, "parameter")) == sorted(kinds)
    assert "`upwell.degraded` is a bool, `…_ms` are doubles, all others strings." in " ".join(prose(POLICY).split())
    others = {"upwell.degraded": bool, **{name: float for name in kinds if name.endswith("_ms")}}
    assert kinds == {name: others.get(name, str) for name in kinds}


def test_numbers_are_those_of_the_code() -> None:
    text = " ".join(prose(POLICY).split())
    assert Breaker.FAILURES == 3
    assert "three failures in a row" in text
    assert f"(`breaker_open`) for {Breaker.FIRST_WAIT_S} s" in text
    assert f"the wait doubles, up to {Breaker.LONGEST_WAIT_S:.0f} s" in text
    assert [fade(silence_s) for silence_s in (1, 3)] == [1.0, 0.5]
    assert "counts whole for one second, half after three" in text
    assert [reserve_s(available_s) for available_s in (0.001, 0.1, 10)] == pytest.approx([0.002, 0.01, 0.025])
    assert "a tenth is kept back for encoding and the way to the caller, at least 2 ms and at most 25 ms" in text


def test_metrics_are_listed_with_their_labels() -> None:
    metrics = AgentMetrics(
        lambda: RouterState(breakers={"": Breaker()}, audits={"digits": AuditAlarm.start(HardSettings())}),
        lambda: [ModelHealth("digits", "ready", "onnxruntime 1", "npu", Placement(), LoadReport())],
    )
    metrics.answers.add("digits", Route.EDGE, Reason.CLOUD_ERROR, 0.1)
    metrics.degraded("digits", Reason.CLOUD_ERROR)
    metrics.failed("digits", Refused("no"))
    metrics.sent("digits", 1)
    metrics.late("digits")
    metrics.audited("digits", agrees=True)
    metrics.rule_failed("odd")
    thread = BackgroundThread("test", lambda: None)
    thread.start()
    thread.join()
    labels = {
        metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, ""): {
            label for sample in metric.samples for label in sample.labels if label != "le"
        }
        for metric in metrics.registry.collect()
    }
    said = {row[0].strip("`"): set(SPAN.findall(row[1])) for row in table(OPERATIONS, "metric")}
    assert {name: there for name, there in said.items() if not name.startswith(OTHERS)} == labels


# --- The tables of pipelines


def test_every_outcome_of_a_frame_is_explained() -> None:
    assert set(names(PIPELINES, "outcome")) == {"answered", *REASONS}


def test_the_line_of_an_event_is_explained_key_by_key() -> None:
    (line,) = (text for info, text in FENCE.findall(PIPELINES.read_text(encoding="utf-8")) if info == "json")
    pasted = json.loads(line)
    event = Event("1", "belt", "passed", 1, 0.0, 0.0, direction="in", answers={"cards": {"route": "edge"}})
    assert list(pasted) == list(json.loads(event.as_json()))
    said = [key for row in table(PIPELINES, "in the line") for key in SPAN.findall(row[0])]
    assert sorted(said) == sorted(pasted)


def test_the_metrics_of_pipelines_are_listed_with_their_labels(tmp_path: Path) -> None:
    sinks = open_sinks({"dock": [JsonlSettings(tmp_path / "events.jsonl")]})
    outbox = Outbox(tmp_path / "outbox.db", sinks, OutboxLimits(), lambda _: True)
    source = MadeSource([np.zeros((8, 8, 3), np.uint8)])
    with FrameLoop("dock", source, (), EventRules([EventRule("seen", "frame")], Zones({}, {}))) as pipeline:
        list(pipeline)
        families = [*pipeline_families({"dock": pipeline}), *sink_families(outbox)]
    outbox.close()
    labels = {
        family.name + {"counter": "_total"}.get(family.type, ""): set(family.samples[0].labels) for family in families
    }
    said = {row[0].strip("`"): set(SPAN.findall(row[1])) for row in table(OPERATIONS, "metric")}
    assert {name: there for name, there in said.items() if name.startswith("upwell_pipeline_")} == labels


# --- What is mentioned exists


@pytest.mark.parametrize("page", [POLICY, ARCHITECTURE, OPERATIONS], ids=lambda page: page.stem)
def test_mentioned_files_exist(page: Path) -> None:
    paths = re.findall(r"(?:edge|cloud|shared|protos|tests|docs|examples|\.ci)/[\w./-]*\w", prose(page))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_walk_mentions_files() -> None:
    assert sum(span.endswith(".py") for span in spans(ARCHITECTURE)) > 20


def members(node: ast.ClassDef) -> Iterator[str]:
    """Names of a class: methods, fields, and what its methods set on `self`."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)):
            yield inner.name
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner.attr
    for statement in node.body:
        yield from assigned(statement)


def assigned(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


@cache
def symbols() -> frozenset[str]:
    """Functions, classes and constants by name, members of classes as `Class.member` and by their own name."""
    found: set[str] = set()
    for module in trees().values():
        for statement in module.body:
            found.update(assigned(statement))
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                found.update(name for member in members(node) for name in (member, f"{node.name}.{member}"))
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found.add(node.name)
    return frozenset(found)


@cache
def texts() -> frozenset[str]:
    """Every text of the code, with `…` for what is filled in."""
    found: set[str] = set()
    for module in trees().values():
        for node in ast.walk(module):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return frozenset(found)


def is_known(name: str) -> bool:
    """Whether a name is one of the code, of a package that can be imported, of an entry-point group, or a text."""
    if name in symbols() or name in entry_points().groups or name in texts():
        return True
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_names_in_the_walk_exist() -> None:
    mentioned = [span for span in spans(ARCHITECTURE) if re.fullmatch(r"\w+(\.\w+)*", span)]
    assert len(mentioned) > 60
    assert sorted({name for name in mentioned if not is_known(name)}) == []


def test_names_that_do_not_exist_are_noticed() -> None:
    assert not is_known("RequestFlow.gone")
    assert not is_known("upwell.edge.gone")
    assert is_known("RequestFlow._settle")
    assert is_known("Decision.give_up_s")


# --- Troubleshooting


def quoted() -> list[str]:
    """The texts of the program that the page quotes: code in the first column that is more than a word."""
    rows = [*table(OPERATIONS, "it says"), *table(OPERATIONS, "status and text")]
    return [span for row in rows for span in SPAN.findall(row[0])]


def test_quoted_texts_are_those_of_the_program() -> None:
    corpus = "\n".join(texts())
    stale = [text for text in quoted() for part in text.split("…") if part.strip(" ;:,") not in corpus]
    assert len(quoted()) > 20
    assert stale == []


def test_each_degraded_reason_has_a_remedy() -> None:
    assert set(names(OPERATIONS, "reason")) == {str(reason) for reason in DEGRADED}
