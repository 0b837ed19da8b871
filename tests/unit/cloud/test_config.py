"""`cloud.yaml`: defaults, models over defaults, and what is refused."""

from pathlib import Path

import pytest

from upwell.cloud import config as config_module
from upwell.cloud.config import CloudConfig
from upwell.shared.config.security import ServerSecurity, TlsFiles
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError

FULL = """
version: 1
serve:
  listen: ["0.0.0.0:8001"]
  models: models
  tls: {cert: s.pem, key: s.key, client_ca: ca.pem}
  tokens: tokens.yaml
  max_message: 16MiB
  drain: 5s
defaults: {engine: onnx, device: cpu, instances: 2, threads: 1, max_batch: 1, max_queue: 64}
models:
  digits-large: {engine: torch, class: digits.LargeNet, max_batch: 32, arguments: {width: 3}}
  plain: {threads: 4}
"""
LEAST = "version: 1\nserve: {listen: ['127.0.0.1:0'], models: /srv/models}\n"


def load(folder: Path, text: str) -> CloudConfig:
    (folder / "cloud.yaml").write_text(text)
    return load_yaml(folder / "cloud.yaml", CloudConfig)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    serve = load(tmp_path, FULL).serve
    assert serve.models == tmp_path / "models"
    files = TlsFiles(tmp_path / "s.pem", tmp_path / "s.key", tmp_path / "ca.pem")
    assert serve.security == ServerSecurity(files, tmp_path / "tokens.yaml", insecure=False)
    assert serve.max_message == 16 << 20
    assert serve.drain == 5.0


def test_a_model_s_keys_count_before_the_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, FULL)
    large = config.settings("digits-large")
    assert (large.engine, large.torch_class, large.max_batch, large.instances) == ("torch", "digits.LargeNet", 32, 2)
    assert large.arguments == {"width": 3}
    plain = config.settings("plain")
    assert (plain.engine, plain.threads, plain.max_batch) == ("onnx", 4, 1)
    assert config.settings("unnamed").threads == 1


def test_what_is_not_written_has_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "usable_cores", lambda: 6)
    config = load(tmp_path, LEAST)
    assert config.serve.security == ServerSecurity()
    assert config.serve.max_message == 64 << 20
    assert config.serve.drain == 30.0
    settings = config.settings("any")
    assert (settings.engine, settings.device, settings.threads, settings.instances) == ("onnx", "cpu", 1, 6)
    assert (settings.max_batch, settings.max_queue) == (1, 64)


@pytest.mark.parametrize(
    ("model", "instances"),
    [
        ("{threads: 4}", 1),
        ("{threads: 2}", 3),
        ("{threads: 9}", 1),
        ("{engine: torch, device: 'cuda:0'}", 1),
        ("{providers: [cuda]}", 1),
        ("{providers: [cuda, cpu]}", 1),
        ("{providers: [CPUExecutionProvider]}", 6),
    ],
)
def test_instances_share_out_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, instances: int
) -> None:
    monkeypatch.setattr(config_module, "usable_cores", lambda: 6)
    assert load(tmp_path, f"{LEAST}models: {{m: {model}}}").settings("m").instances == instances


def test_how_a_network_is_computed_is_its_own_or_the_default(tmp_path: Path) -> None:
    text = (
        f"{LEAST}defaults: {{precision: bf16, compile: true, graphs: true, providers: [cuda]}}\n"
        "models: {a: {engine: torch, precision: fp16, compile: false, graphs: false}, b: {providers: []}, c: {}}"
    )
    config = load(tmp_path, text)
    a, b, c = (config.settings(name) for name in "abc")
    assert (a.precision, a.compile, a.graphs, a.providers) == ("fp16", False, False, ("cuda",))
    assert (c.precision, c.compile, c.graphs, c.providers) == ("bf16", True, True, ("cuda",))
    assert b.providers == ()
    assert load(tmp_path, LEAST).settings("any").precision is None


def test_a_model_without_an_engine_has_the_default_one(tmp_path: Path) -> None:
    config = load(tmp_path, f"{LEAST}defaults: {{engine: torch}}\nmodels: {{m: {{class: a.B}}}}")
    assert config.settings("m").torch_class == "a.B"
    assert config.settings("n").engine == "torch"


def test_what_is_served_may_change_only_where_that_is_written(tmp_path: Path) -> None:
    assert not load(tmp_path, LEAST).serve.repository.may_change
    for text in ("{control: true}", "{watch: 1s}"):
        assert load(tmp_path, LEAST.replace("}", f", repository: {text}}}")).serve.repository.may_change


def test_the_versions_of_a_model_are_its_own_or_the_default(tmp_path: Path) -> None:
    config = load(tmp_path, f"{LEAST}models: {{a: {{versions: [1, 3]}}, b: {{versions: latest}}, c: {{}}}}")
    assert [config.versions_of(name) for name in "abcd"] == [(1, 3), "latest", "all", "all"]
    config = load(tmp_path, f"{LEAST}defaults: {{versions: latest}}\nmodels: {{a: {{versions: all}}, c: {{}}}}")
    assert [config.versions_of(name) for name in "acd"] == ["all", "latest", "latest"]


def test_other_addresses_leave_the_rest_as_it_is(tmp_path: Path) -> None:
    config = load(tmp_path, FULL)
    other = config.listening_on(["127.0.0.1:0"])
    assert other.serve.listen == ("127.0.0.1:0",)
    assert other.serve.models == config.serve.models
    assert config.serve.listen == ("0.0.0.0:8001",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{LEAST}models: {{m: {{class: a.B}}}}", r"cloud\.yaml:3:.*class"),
        (f"{LEAST}models: {{m: {{engine: abacus}}}}", r"cloud\.yaml:3:.*m.*'onnx'"),
        (f"{LEAST}models: {{m: {{engine: torch, class: NoModule}}}}", "class"),
        (f"{LEAST}models: {{m: {{versions: [true]}}}}", r"models\.m\.versions\[0\]: expected a whole number, got true"),
        (f"{LEAST}models: {{m: 3}}", r"models\.m"),
        (f"{LEAST}models: 3", "models"),
        (f"{LEAST}defaults: 3", "defaults"),
        (f"{LEAST}defaults: {{engine: tflite}}", r"defaults\.engine"),
        (f"{LEAST}defaults: {{instances: 0}}", r"defaults\.instances"),
        (f"{LEAST}defaults: {{device: '/dev/sda'}}", r"defaults\.device"),
        (f"{LEAST}defaults: {{precision: int8}}", r"defaults\.precision"),
        (f"{LEAST}defaults: {{providers: cuda}}", r"defaults\.providers"),
        (f"{LEAST}models: {{m: {{engine: onnx, compile: true}}}}", r"models\.m.*compile"),
        (f"{LEAST}models: {{m: {{engine: torch, class: a.B, providers: [cuda]}}}}", r"models\.m.*providers"),
        (f"{LEAST}more: 1", "more"),
        (f"{LEAST}models: {{m: {{versions: newest}}}}", r"models\.m.*versions.*'latest' or 'all'"),
        (f"{LEAST}models: {{m: {{versions: []}}}}", r"models\.m.*versions"),
        (f"{LEAST}models: {{m: {{versions: [-1]}}}}", r"models\.m.*versions"),
        (f"{LEAST}defaults: {{versions: [1]}}", r"defaults\.versions"),
        (LEAST.replace("}", ", repository: {watch: 1ms}}"), r"serve\.repository\.watch: .*at least 50ms"),
        (LEAST.replace("}", ", repository: {watch: 0}}"), r"serve\.repository\.watch"),
        (LEAST.replace("}", ", repository: {watch: 1}}"), r"serve\.repository\.watch: .*1s"),
        (LEAST.replace("}", ", repository: {poll: 1s}}"), r"serve\.repository\.poll"),
        ("version: 2\nserve: {listen: ['127.0.0.1:0'], models: m}", "version"),
        ("version: 1\nserve: {listen: [], models: m}", r"serve\.listen"),
        (
            "version: 1\nserve: {listen: [nowhere], models: m}",
            r"^\S+cloud\.yaml:2:18: serve\.listen\[0\]: 'nowhere' is no",
        ),
        (
            LEAST.replace("}", ", listen_http: ['nowhere:1:2']}"),
            r"serve\.listen_http\[0\]: 'nowhere:1:2' is not an address",
        ),
        ("version: 1\nserve: {listen: ['127.0.0.1:0'], models: m, max_message: 64}", "64MiB"),
        ("version: 1\nserve: {listen: ['127.0.0.1:0'], models: m, max_message: 0}", r"serve\.max_message"),
        ("version: 1\nserve: {listen: ['127.0.0.1:0'], models: m, max_message: 3GB}", r"serve\.max_message.*'3GB'"),
        (LEAST.replace("}", ", workers: true}"), r"serve\.workers: expected a whole number or 'auto', got true"),
        (
            LEAST.replace("127.0.0.1:0", "[::1]:80").replace("}", ", metrics: '[::1]:80'}"),
            "repeated in `listen` and `metrics`",
        ),
        (
            LEAST.replace("127.0.0.1:0", "127.0.0.1:80").replace("}", ", listen_http: ['127.0.0.1:80']}"),
            r"cloud\.yaml:\d+:\d+: serve: 127\.0\.0\.1:80 is repeated in `listen` and `listen_http`",
        ),
        (LEAST.replace("['127.0.0.1:0']", "['unix:/a', 'unix:/a']"), "repeated in `listen`;"),
        ("version: 1", "serve"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load(tmp_path, text)
    assert "cloud.yaml" in str(caught.value)


def test_any_free_port_may_be_asked_for_more_than_once(tmp_path: Path) -> None:
    again = ", listen_http: ['127.0.0.1:0', '127.0.0.1:0'], metrics: '127.0.0.1:0'}"
    assert load(tmp_path, LEAST.replace("}", again)).serve.metrics == "127.0.0.1:0"


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://me:hunter2@collector", "https://collector/?key=hunter2", "hunter2@c:1", "https:/collector?key=hunter2",
        "https:/me:hunter2://x@c",
    ],
)  # fmt: skip
def test_what_may_be_a_secret_is_not_repeated(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"serve\.traces: expected a URL") as caught:
        load(tmp_path, LEAST.replace("}", f", traces: {{endpoint: '{endpoint}'}}}}"))
    assert "hunter2" not in str(caught.value)


def test_every_key_is_described() -> None:
    schema = CloudConfig.model_json_schema()
    parts = [schema, *(part for part in schema["$defs"].values() if "properties" in part)]
    keys = {f"{part['title']}.{key}": value for part in parts for key, value in part["properties"].items()}
    assert len(keys) > 20
    described = {f"#/$defs/{name}" for name, part in schema["$defs"].items() if "description" in part}
    assert [
        key
        for key, value in keys.items()
        if "description" not in value
        and not any(one.get("$ref") in described for one in (value, *value.get("anyOf", ())))
    ] == []


@pytest.mark.parametrize(
    ("defaults", "model", "buckets", "max_batch"),
    [
        ("buckets: [1, 4, 16]", "threads: 1", (1, 4, 16), 16),
        ("buckets: [1, 4, 16]", "max_batch: 8", (), 8),
        ("buckets: [1, 4, 16]", "buckets: [2]", (2,), 2),
        ("max_batch: 8", "buckets: [2, 3]", (2, 3), 3),
        ("buckets: [1, 4], max_batch: 4", "threads: 1", (1, 4), 4),
        ("max_batch: 8", "threads: 1", (), 8),
    ],
)
def test_buckets_and_max_batch_are_one_setting(
    tmp_path: Path, defaults: str, model: str, buckets: tuple[int, ...], max_batch: int
) -> None:
    config = load(tmp_path, f"{LEAST}defaults: {{{defaults}}}\nmodels: {{m: {{{model}}}}}\n")
    settings = config.settings("m")
    assert (settings.buckets, settings.max_batch) == (buckets, max_batch)
    assert CloudConfig.model_validate(config.as_written()).settings("m") == settings


MOST = {"threads": 512, "instances": 256, "max_batch": 4096, "max_queue": 4096}


@pytest.mark.parametrize("key", MOST)
def test_a_digit_too_many_does_not_take_the_machine_down(tmp_path: Path, key: str) -> None:
    for place, says in (
        (f"defaults: {{{key}: NUMBER}}\n", "defaults"),
        (f"models: {{m: {{{key}: NUMBER}}}}\n", "models.m"),
    ):
        load(tmp_path, LEAST + place.replace("NUMBER", str(MOST[key])))
        with pytest.raises(ConfigError, match=rf"{says}\S*\.{key}: .* {MOST[key]}"):
            load(tmp_path, LEAST + place.replace("NUMBER", str(MOST[key] + 1)))


@pytest.mark.parametrize("key", ["drain: 480h", "max_connection_age: 480h", "repository: {watch: 480h}"])
def test_times_that_nobody_lives_to_see(tmp_path: Path, key: str) -> None:
    assert load(tmp_path, LEAST.replace("}", f", {key}}}"))
    with pytest.raises(ConfigError, match=rf"serve\S*\.{key.split(':')[-2].strip(' {')}: expected at most 480h"):
        load(tmp_path, LEAST.replace("}", f", {key.replace('480', '481')}}}"))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("buckets: [4, 1]", r"expected ascending numbers of rows, such as \[1, 4, 16\], got \[4, 1\]"),
        ("buckets: [4, 4]", "expected ascending"),
        ("buckets: [1, 4], max_batch: 8", r"`max_batch` is 8, the largest of `buckets` 4; write `buckets` alone"),
        ("buckets: []", r"buckets: expected 1 or more items"),
        ("buckets: [0]", r"buckets\[0\]: expected 1 or more, got 0$"),
        ("buckets: [1, 5000]", r"buckets\[1\]: expected 4096 or less, got 5000$"),
        ("buckets: [true]", r"buckets\[0\]: expected a whole number, got true$"),
    ],
)
def test_buckets_that_cannot_be(tmp_path: Path, keys: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(tmp_path, f"{LEAST}defaults: {{{keys}}}\n")
    with pytest.raises(ConfigError, match=told) as caught:
        load(tmp_path, f"{LEAST}models: {{m: {{{keys}}}}}\n")
    assert len(caught.value.problems) == 1, "one mistake, of the key that is written"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "serve: {listen: ['127.0.0.1:0'], models: m, trusted: [ABCD]}",
            r"trusted\[0\]: .*64 hex digits in lower case",
        ),
        ("defaults: {device: 'CUDA:0'}", "defaults.device: .*lower case, such as cpu, cuda, cuda:0"),
        ("models: {m: {providers: ['CUDA EP']}}", r"providers\[0\]: .*such as cuda or CUDAExecutionProvider"),
        ("models: {m: {engine: torch, class: LargeNet}}", "class: .*such as mypackage.LargeNet, got 'LargeNet'"),
    ],
)
def test_words_that_are_spelled_wrong_say_how_they_are_spelled(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(tmp_path, text + "\n" if text.startswith("serve") else f"{LEAST}{text}\n")


def test_workers_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "usable_cores", lambda: 8)
    for workers, threads, instances in ((1, 1, 8), (2, 1, 4), (2, 2, 2), (8, 2, 1), (16, 1, 1)):
        text = LEAST.replace("}", f", workers: {workers}}}") + f"defaults: {{threads: {threads}}}"
        assert load(tmp_path, text).settings("any").instances == instances
    text = LEAST.replace("}", ", workers: 2}") + "defaults: {engine: torch, device: 'cuda:0'}"
    assert load(tmp_path, text).settings("any").instances == 1


@pytest.mark.parametrize(
    ("keys", "age_s"),
    [
        ("", None),
        (", workers: 2", 300.0),
        (", workers: 2, max_connection_age: 0", None),
        (", workers: 2, max_connection_age: 2s", 2.0),
        (", max_connection_age: 1h", 3600.0),
    ],
)
def test_connections_age_where_several_workers_share_them(tmp_path: Path, keys: str, age_s: float | None) -> None:
    assert load(tmp_path, LEAST.replace("}", f"{keys}}}")).serve.connection_age_s == age_s


def test_a_connection_of_no_age_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"serve\.max_connection_age: .*at least 100ms"):
        load(tmp_path, LEAST.replace("}", ", max_connection_age: 1ms}"))
