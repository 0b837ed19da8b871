"""Rules of the house: what lies where, what is public, what may be imported, and what must not be written down."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import upwell.edge
import upwell.pipelines
from tests.seeded_faults import FAULTS, TESTS
from tests.source_trees import PORTIONS, ROOT, trees
from upwell.shared.routing import reasons


def repository() -> list[Path]:
    """Every file of the repository, relative to its root, without what is ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


FILES = repository()
MODULES = sorted(
    file for file in FILES if file.suffix == ".py" and file.parts[0] in PORTIONS and file.parts[1:2] == ("upwell",)
)
"""Every module of the wheel."""


def dotted(module: Path) -> str:
    """`edge/upwell/edge/agent.py` -> `upwell.edge.agent`."""
    return ".".join(module.with_suffix("").parts[1:]).removesuffix(".__init__")


def test_the_top_level_holds_what_the_design_says_and_no_more() -> None:
    named = {
        "LICENSE", "Makefile", "CHANGELOG.md", "README.md", "constraints.txt", "constraints-tflite.txt",
        "pyproject.toml", "docs", "examples", "tests", *PORTIONS,
    }  # fmt: skip
    found = {file.parts[0] for file in FILES if not file.parts[0].startswith(".")}
    assert found == named
    assert {file.parts[0] for file in FILES} - found == {".ci", ".gitignore", ".pre-commit-config.yaml"}


def test_upwell_is_a_namespace_package() -> None:
    for portion in PORTIONS:
        assert not (ROOT / portion / "upwell/__init__.py").exists()
        assert [path.name for path in (ROOT / portion / "upwell").iterdir() if path.is_file()] == []
    assert upwell.__file__ is None


@pytest.mark.parametrize(
    "portion",
    ["edge/upwell/edge", "cloud/upwell/cloud", "cloud/upwell/fleet", "shared/upwell/shared", "protos/upwell/rpc"],
)
def test_every_portion_is_typed(portion: str) -> None:
    assert Path(portion, "py.typed") in FILES


def test_an_init_holds_a_docstring_and_deliberate_exports_alone() -> None:
    for module in MODULES:
        if module.name != "__init__.py":
            continue
        body = trees()[module].body
        assert isinstance(body[0], ast.Expr), f"{module} has no docstring"
        if module in (Path("edge/upwell/edge/__init__.py"), Path("edge/upwell/pipelines/__init__.py")):
            body = [node for node in body if not isinstance(node, (ast.If, ast.FunctionDef))]  # its exports are lazy
        assert all(isinstance(node, (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign)) for node in body), module


def test_every_module_says_what_it_is_for() -> None:
    for module in MODULES:
        if not module.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            assert (ROOT / module).read_text().startswith('"""'), module


def test_the_map_says_so_of_each() -> None:
    done = subprocess.run([sys.executable, ROOT / ".ci/print_map.py"], capture_output=True, text=True, check=True)
    named = re.findall(r"^  (\w+\.py)  \S", done.stdout, re.MULTILINE)
    written = [module for module in MODULES if module.name != "__init__.py" and "rpc" not in module.parts]
    assert sorted(named) == sorted(module.name for module in written)


def test_every_code_is_documented_where_it_is_defined() -> None:
    """Each member of Reason has a docstring line after it; plans and routes too, but those that are their own names."""
    parsed = ast.parse(Path(reasons.__file__).read_text())
    classes = {node.name: node for node in parsed.body if isinstance(node, ast.ClassDef)}
    for name in ("Reason", "Plan", "Route"):
        body = classes[name].body
        members = {
            node.targets[0].id: isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant)
            for node, follower in zip(body, [*body[1:], None])  # noqa: B905  of equal length by construction
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        assert set(members) == {member.name for member in getattr(reasons, name)}
        undocumented = {member for member, documented in members.items() if not documented}
        assert undocumented == ({"EDGE", "CLOUD"} if name == "Route" else set())


def test_the_public_names_are_these() -> None:
    errors = {
        "CloudFailed", "ConfigError", "DeadlineExceeded", "InvalidRequest", "ModelFailed", "ModelNotFound",
        "NoAllowedRoute", "Refused", "Superseded", "Unavailable", "UpwellError",
    }  # fmt: skip
    assert set(upwell.edge.__all__) == {"Agent", "Answer", "Timings", *errors}
    assert all(getattr(upwell.edge, name) is getattr(upwell.shared.errors, name) for name in errors)
    public = {name for name in dir(upwell.edge.Agent) if not name.startswith("_")}
    assert public == {"close", "from_config", "health", "health_document", "infer"}
    fields = [
        "outputs", "route", "reason", "degraded", "plan", "timings", "id", "routes", "edge_digest", "cloud_digest",
        "spool_id", "spool_rows", "accelerator", "edge_state", "cut", "labels", "hardness", "agent", "version",
    ]  # fmt: skip
    assert list(upwell.edge.Answer.__dataclass_fields__) == fields
    times = ["total_s", "edge_s", "uplink_s", "cloud_queue_s", "cloud_compute_s"]
    assert list(upwell.edge.Timings.__dataclass_fields__) == times
    names = {"AnsweredFrame", "FoundObject", "Frame", "Pipeline", "PipelineStatus", "Scene"}
    assert set(upwell.pipelines.__all__) == names
    assert all(getattr(upwell.pipelines, name).__name__ == name for name in names)
    public = {name for name in dir(upwell.pipelines.Pipeline) if not name.startswith("_")}
    assert public == {"close", "from_config", "status", "stop"}
    assert list(upwell.pipelines.AnsweredFrame.__dataclass_fields__) == ["scene", "fired", "latency_s", "steps"]


def test_the_tree_of_errors_names_each_and_where_it_is() -> None:
    classes = {
        (node.name, dotted(module).removeprefix("upwell.")): {
            base.id for base in node.bases if isinstance(base, ast.Name)
        }
        for module, tree in trees().items() for node in tree.body if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    there: set[tuple[str, str]] = set()
    names = {"UpwellError"}
    while more := {one for one, bases in classes.items() if bases & names} - there:
        there |= more
        names |= {name for name, _ in more}
    tree = upwell.shared.errors.__doc__ or ""
    said = re.findall(r"── ([A-Z]\w+) +((?:cloud|edge|fleet|pipelines|shared|tools)(?:\.\w+)+)?", tree)
    assert {(name, module or "shared.errors") for name, module in said} == there


BASE = {
    "google", "grpc", "numpy", "PIL", "prometheus_client", "pydantic", "pydantic_core", "rich", "ruamel",
    "typer", "typing_extensions", "upwell",
}  # fmt: skip
"""What the base installation brings, as it is imported."""

NEEDS_AN_EXTRA = {
    "upwell.cloud.engines.onnxruntime_import": {"onnxruntime"},
    "upwell.edge.runtimes.onnxruntime_import": {"onnxruntime"},
    "upwell.cloud.engines.safetensors_weights": {"safetensors"},
    "upwell.cloud.engines.jax_engine": {"flatbuffers", "jax"},
    "upwell.tools.export.torch_to_device": {
        "ai_edge_litert",
        "flatbuffers",
        "litert_torch",
        "onnx",
        "onnxscript",
        "torch",
    },
    "upwell.tools.export.torch_to_jax": {"jax", "torch", "torchax"},
    "upwell.tools.export.torch_network": {"ml_dtypes", "torch"},
    "upwell.cloud.engines.torch.torch_engine": {"torch"},
    "upwell.cloud.engines.torch.demo": {"torch"},
    "upwell.cloud.engines.torch.networks": {"torch"},
    "upwell.cloud.engines.torch.network_calls": {"torch"},
    "upwell.cloud.workers.health_and_reflection": {"grpc_health", "grpc_reflection"},
    "upwell.tools.export.cli": {"safetensors"},
    "upwell.cloud.ray.serve": {"ray"},
    "upwell.edge.bundle.signing_keys": {"cryptography"},
    "upwell.edge.case_collection.case_file_encryption": {"cryptography"},
    "upwell.tools.doctor_cli": {"cryptography"},
    "upwell.tools.cases.case_exports": {"pyarrow"},
    "upwell.tools.demo.demo_plot": {"matplotlib"},
    "upwell.edge.updates.releases.repository_transport": {"requests"},
    "upwell.edge.updates.releases.tuf_client": {"tuf"},
    "upwell.tools.release.repository_editor": {"securesystemslib", "tuf"},
    "upwell.edge.updates.sources.oci_source": {"oras", "requests"},
    "upwell.edge.updates.sources.web_source": {"requests", "urllib3"},
    "upwell.tools.quantize.onnx_graph": {"onnx"},
    "upwell.tools.quantize.onnx_layer_errors": {"onnx"},
    "upwell.tools.quantize.onnx_qdq": {"onnx", "onnxruntime"},
    "upwell.tools.quantize.tflite_graph": {"ai_edge_litert"},
    "upwell.tools.quantize.tflite_layer_errors": {"ai_edge_litert"},
    "upwell.tools.quantize.tflite_int8": {"ai_edge_quantizer"},
    "upwell.edge.runtimes.onnx.runtime": {"onnx"},
    "upwell.shared.partition.mincut": {"scipy"},
    "upwell.shared.signature.tokenization": {"tokenizers"},
    "upwell.shared.partition.read_onnx": {"onnx"},
    "upwell.tools.partition.advice_plot": {"matplotlib"},
    "upwell.shared.partition.read_tflite": {"ai_edge_litert"},
    "upwell.shared.partition.split.onnx_halves": {"onnx"},
    "upwell.shared.partition.split.tflite_halves": {"ai_edge_litert", "flatbuffers"},
    "upwell.tools.plot_style": {"matplotlib"},
    "upwell.tools.policy.policy_plots": {"matplotlib"},
    "upwell.shared.tensors": {"ml_dtypes"},
    "upwell.shared.routing.policy.cel_conditions": {"cel_expr_python"},
    "upwell.shared.config.cel_expressions": {"cel_expr_python"},
    "upwell.pipelines.events.where_condition": {"cel_expr_python"},
    "upwell.pipelines.sinks.kafka": {"confluent_kafka"},
    "upwell.pipelines.sinks.mqtt": {"paho"},
    "upwell.pipelines.sources.mqtt": {"paho"},
    "upwell.pipelines.sources.decoder_child": {"av"},
    "upwell.pipelines.steps.tracker": {"scipy"},
    "upwell.tools.demo.video_run": {"av"},
    "upwell.tools.pipeline_test_cli": {"av"},
    "upwell.pipelines.sources.folder": {"watchfiles"},
    "upwell.shared.telemetry.otlp": {"opentelemetry", "requests"},
    "upwell.tools.wheelhouse.cli": {"packaging"},
    "upwell.edge.fleet.device_identity": {"cryptography"},
    "upwell.fleet.api.rest_endpoint": {"starlette"},
    "upwell.fleet.uploaded_cases": {"starlette"},
    "upwell.fleet.dashboard.pages": {"jinja2", "sqlalchemy", "starlette"},
    "upwell.fleet.enrolment.certificate_authority": {"cryptography"},
    "upwell.fleet.enrolment.enrolment": {"sqlalchemy"},
    "upwell.fleet.opamp.opamp_endpoint": {"starlette"},
    "upwell.fleet.registry.devices": {"sqlalchemy"},
    "upwell.fleet.registry.device_presence": {"sqlalchemy"},
    "upwell.fleet.registry.device_reports": {"sqlalchemy"},
    "upwell.fleet.registry.device_events": {"sqlalchemy"},
    "upwell.fleet.registry.groups": {"cel_expr_python", "sqlalchemy"},
    "upwell.fleet.registry.device_questions": {"sqlalchemy"},
    "upwell.fleet.registry.shadow_releases": {"sqlalchemy"},
    "upwell.fleet.rollout.rollout_store": {"sqlalchemy"},
    "upwell.fleet.budget.budget_store": {"sqlalchemy"},
    "upwell.fleet.storage.migrations.versions.v0004_budgets": {"alembic", "sqlalchemy"},
    "upwell.fleet.storage.migrations.versions.v0005_drift": {"alembic", "sqlalchemy"},
    "upwell.fleet.service.application": {"sqlalchemy", "starlette"},
    "upwell.fleet.service.server": {"sqlalchemy", "starlette", "uvicorn"},
    "upwell.fleet.storage.database": {"alembic", "sqlalchemy"},
    "upwell.fleet.storage.migrations.env": {"alembic"},
    "upwell.fleet.storage.migrations.versions.v0001_registry": {"alembic", "sqlalchemy"},
    "upwell.fleet.storage.migrations.versions.v0002_rollouts": {"alembic", "sqlalchemy"},
    "upwell.fleet.storage.migrations.versions.v0003_shadow": {"alembic", "sqlalchemy"},
    "upwell.fleet.storage.tables": {"sqlalchemy"},
    "upwell.fleet.users": {"sqlalchemy"},
}
"""The modules that name a package of an extra, and which."""

IMPORTED_LATER = {
    "upwell.edge.case_collection.case_file_encryption",
    "upwell.edge.updates.releases.repository_transport",
    "upwell.tools.cases.case_exports",
    "upwell.tools.doctor_cli",
    "upwell.tools.export.cli",
    "upwell.cloud.ray.serve",
    "upwell.edge.models.runtime_candidates",
    "upwell.shared.partition.mincut",
    "upwell.shared.signature.tokenization",
    "upwell.tools.plot_style",
    "upwell.shared.tensors",
    "upwell.shared.config.cel_expressions",
    "upwell.pipelines.sources.folder",
}
"""Of these, the modules that import it in a function or only where it is installed, and can be imported without it."""

ALSO_NEED_ONE = {
    "upwell.tools.release.release_check",
    "upwell.tools.release.release_maker",
    "upwell.cloud.workers.serving_process",
    "upwell.cloud.workers.worker_child",
    "upwell.cloud.engines.onnx_engine",
    "upwell.tools.devices.onnx_attempts",
    "upwell.edge.runtimes.onnx.runtime",
    "upwell.edge.runtimes.onnx.compiled_cache",
    "upwell.edge.runtimes.onnx.node_assignment",
    "upwell.edge.runtimes.onnx.providers",
    "upwell.edge.runtimes.onnx.sessions",
    "upwell.edge.runtimes.onnx.tensor_conversion",
    "upwell.pipelines.commands.run_cli",
    "upwell.pipelines.run.bound_steps",
    "upwell.pipelines.run.pipeline_factory",
    "upwell.edge.fleet.fleet_protocol",
    "upwell.edge.fleet.fleet_poller",
    "upwell.fleet.api.device_and_user_operations",
    "upwell.fleet.api.operation_table",
    "upwell.fleet.api.budget_operations",
    "upwell.fleet.api.rollout_operations",
    "upwell.fleet.api.shadow_operations",
    "upwell.fleet.opamp.poll_handler",
    "upwell.fleet.opamp.opamp_messages",
    "upwell.pipelines.run.pipelines_file",
    "upwell.pipelines.run.embedded_pipeline",
}
"""The modules that import one of those."""


def test_an_extra_is_imported_in_named_modules_alone() -> None:
    found: dict[str, set[str]] = {}
    for module in MODULES:
        for node in ast.walk(trees()[module]):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [str(node.module)] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
                others = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - BASE
                if others:
                    found.setdefault(dotted(module), set()).update(others)
    assert found == NEEDS_AN_EXTRA


def test_everything_else_can_be_imported_without_any_extra() -> None:
    script = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
failed = []
for name in json.loads(sys.argv[2]):
    try:
        importlib.import_module(name)
    except ImportError:
        failed.append(name)
print(json.dumps(failed))
"""
    extras = sorted(set().union(*NEEDS_AN_EXTRA.values()) | {"ai_edge_litert", "tflite_runtime", "onnx", "scipy"})
    modules = [dotted(module) for module in MODULES]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, json.dumps(extras), json.dumps(modules)],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    assert set(json.loads(done.stdout)) == {*NEEDS_AN_EXTRA, *ALSO_NEED_ONE} - IMPORTED_LATER


def imports(module: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that this one names in an import, lazy ones and those for types alike."""
    found = set()
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {full if (full := f"{node.module}.{one.name}") in known else node.module for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found & known.keys() - {dotted(module)}


def in_a_cycle(graph: dict[str, set[str]]) -> set[str]:
    """What is left without all that imports nothing that is left, or is imported by nothing that is left."""
    left = dict(graph)
    while gone := {
        name for name, others in left.items()
        if not others & left.keys() or not any(name in more for other, more in left.items() if other != name)
    }:  # fmt: skip
        left = {name: others for name, others in left.items() if name not in gone}
    return set(left)


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = {dotted(module): module for module in MODULES}
    graph = {name: imports(module, known) for name, module in known.items()}
    assert in_a_cycle(graph) == set()
    packages: dict[str, set[str]] = {}
    for name, others in graph.items():
        mine = ".".join(name.split(".")[:3])
        packages.setdefault(mine, set()).update({".".join(other.split(".")[:3]) for other in others} - {mine})
    assert in_a_cycle(packages) == set()
    assert in_a_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {"b", "c"}


def test_every_command_and_engine_can_be_found() -> None:
    for group, names in {
        "console_scripts": {"upwell"},
        "upwell.commands": {
            "agent",
            "cases.export",
            "cases.import",
            "cases.list",
            "cases.purge",
            "cases.select",
            "cases.show",
            "cases.stats",
            "demo",
            "drift",
            "devices",
            "evaluate",
            "doctor",
            "explain",
            "fleet.assign",
            "fleet.audit",
            "fleet.back",
            "fleet.budget",
            "fleet.devices",
            "fleet.explain",
            "fleet.group",
            "fleet.label",
            "fleet.pause",
            "fleet.resume",
            "fleet.revoke",
            "fleet.rollout",
            "fleet.rollouts",
            "fleet.serve",
            "fleet.shadow",
            "fleet.show",
            "fleet.tail",
            "fleet.token",
            "fleet.user",
            "infer",
            "model.coverage",
            "model.export",
            "model.export-jax",
            "model.init",
            "model.pack",
            "model.quantize",
            "model.reference",
            "model.rollback",
            "model.sign",
            "model.verify",
            "partition.plan",
            "partition.profile",
            "partition.split",
            "partition.verify",
            "serve",
            "top",
            "pipeline.check",
            "pipeline.draw-zones",
            "pipeline.outbox",
            "pipeline.schema",
            "pipeline.test",
            "release.add",
            "release.init",
            "release.publish",
            "release.show",
            "release.sign",
            "release.verify",
            "release.wheelhouse",
            "run",
            "policy.calibrate",
            "policy.check",
            "policy.collect",
            "policy.explain",
            "policy.schema",
            "policy.simulate",
            "spool.list",
            "spool.purge",
        },
        "upwell.engines": {"jax", "onnx", "torch"},
        "upwell.torch_models": {"digits-large", "pages-large"},
        "upwell.partition_tiers": {"edge", "cloud"},
    }.items():
        ours = [entry for entry in importlib.metadata.entry_points(group=group) if entry.module.startswith("upwell.")]
        assert {entry.name for entry in ours} == names
        assert {entry.module for entry in ours} <= {dotted(module) for module in MODULES}


def script(name: str) -> ModuleType:
    """A script of .ci, imported."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for their annotations
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def test_the_platform_table_is_in_the_readme_and_asks_for_extras_that_exist() -> None:
    platforms = script("check_platforms")
    text = (ROOT / "README.md").read_text()
    before, _, rest = text.partition(platforms.START)
    table, end, _ = rest.partition(platforms.END)
    assert before
    assert end
    assert text.count(platforms.START) == text.count(platforms.END) == 1
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [one.name for one in platforms.PLATFORMS]
    extras = set(importlib.metadata.metadata("upwell").get_all("Provides-Extra") or ())
    assert {extra for one in platforms.PLATFORMS for extra in one.extras.split(",") if extra} <= extras


def test_a_row_of_the_platform_table_names_what_decides() -> None:
    platforms = script("check_platforms")
    one = platforms.Platform("Some board", "3.11", "target", "edge", "a note")
    packages = ["numpy==1.26.4 ; python_version < '3.12'", "rich==14.0.0", "onnxruntime==1.24.0", "grpcio-x==1"]
    assert platforms.row(one, packages) == (
        "| Some board | 3.11 | `upwell[edge]` | numpy==1.26.4, onnxruntime==1.24.0 | a note |"
    )


def test_the_tested_set_pins_everything_that_is_asked_for() -> None:
    pinned = set()
    for name in ("constraints.txt", "constraints-tflite.txt"):
        text = (ROOT / name).read_text()
        assert text.startswith("# The tested set")
        pinned |= {line.partition("==")[0].lower() for line in text.splitlines() if "==" in line}
    wanted = {
        re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower()
        for requirement in importlib.metadata.requires("upwell") or ()
    }
    assert wanted - {"upwell"} <= pinned
    assert not any(name.startswith(script("lock").LEFT_OUT) for name in pinned)


HOSTS = "|".join(re.escape(".".join(parts)) for parts in (("pypi", "org"), ("pythonhosted", "org")))
FOLDERS = "|".join("/" + name for name in ("root/", "work/", "Users/", "home/(?!u\\b)"))
PRIVATE = re.compile(rf"{HOSTS}|https?://\S+/simple\b|(?<![\w.~}}-])(?:{FOLDERS})")
"""Hosts of package indexes, and folders of the people who work here; /home/u is nobody's."""


def test_no_file_names_a_package_index_or_somebodys_folder() -> None:
    found = []
    for file in FILES:
        data = (ROOT / file).read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode().splitlines(), 1):
            if PRIVATE.search(line):
                found.append(f"{file}:{number}: {line.strip()[:80]}")
    assert found == []


def test_what_counts_as_private_is_recognised() -> None:
    for parts in (
        ("https://py", "pi.org/x"),
        ("see /wo", "rk/shared"),
        ('"/ho', 'me/jane/x"'),
        ("http://10.0.0.1/sim", "ple"),
    ):
        assert PRIVATE.search("".join(parts)), parts
    for text in ("/srv/models", "a/work/b", "docs/root/", "https://example.com/simpler", "~/home/x"):
        assert not PRIVATE.search(text), text


@pytest.mark.parametrize("limit", [600, 700])
def test_files_stay_short_enough_to_read(limit: int) -> None:
    """A module is one idea, whole; over 600 lines (tests: 700) it is more than one. Generated code is what it is."""
    code = [f for f in MODULES if "_pb2" not in f.name] if limit == 600 else []
    tests = [f for f in FILES if f.suffix == ".py" and f.parts[0] == "tests"] if limit == 700 else []
    lengths = {str(file): len((ROOT / file).read_text().splitlines()) for file in (*code, *tests)}
    assert {file: length for file, length in lengths.items() if length > limit} == {}


def test_what_has_the_machine_for_itself_is_where_the_makefile_runs_it() -> None:
    found = [file for file in FILES if file.suffix == ".py" and re.search(r"mark\.alone", (ROOT / file).read_text())]
    (places,) = re.findall(
        r"^ALONE = .* --include='test_\*\.py' (.*)\)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    folders = {file.parent for file in found} - {Path(__file__).parent.relative_to(ROOT)}
    under = {folder: [place for place in places.split() if folder.is_relative_to(place)] for folder in folders}
    assert all(under.values()), under  # pytest goes into the folders of a place
    assert {place for those in under.values() for place in those} == set(places.split())


def test_what_a_bundle_names_is_opened_in_one_place() -> None:
    """A plain `open` follows any link and waits at a pipe; `open_plain` and `load_description` do neither."""
    readers = ("edge/bundle", "edge/models", "edge/runtimes", "cloud/engines", "cloud/repository")
    own = {  # what the device keeps itself, and the libraries and keys that its operator names
        "upwell.edge.models.runtime_candidates", "upwell.edge.runtimes.probe_process",
        "upwell.edge.runtimes.onnx.compiled_cache",
        "upwell.edge.bundle.archive", "upwell.edge.bundle.signing_keys", "upwell.edge.updates.version_state",
        "upwell.edge.updates.model_versions.rollback_by_hand",
    }  # fmt: skip
    for module in MODULES:
        calls = [node for node in ast.walk(trees()[module]) if isinstance(node, ast.Call)]
        text = (ROOT / module).read_text()
        if dotted(module) != "upwell.shared.signature.model_yaml":
            assert not re.search(r"(load|parse)_yaml\([^()]*path[^()]*, ModelDescription", text), module
        if any(f"upwell/{part}/" in module.as_posix() for part in readers) and dotted(module) not in own:
            opens = [one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == "open"]
            modes = [arg.value for one in opens for arg in one.args if isinstance(arg, ast.Constant)]
            assert "rb" not in modes, module


def test_every_seeded_fault_has_its_place_and_its_tests() -> None:
    assert [file for files in TESTS.values() for file in files if not (ROOT / file).exists()] == []
    lost = [one for one in FAULTS if (ROOT / one.file).read_text().count(one.old) != 1]
    assert lost == []
