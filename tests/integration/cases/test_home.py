"""Cases brought home: each once, whole, sealed if a key is named; a folder that is away costs nothing; egress holds."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.faults.clouds import ScriptedCloud
from tests.faults.oracles import picture
from tests.faults.scene import until
from tests.integration.agent.kept import EASY, MARK, SPOOLED, STATE, spooling_agent
from tests.integration.cases.test_collecting import kept, run
from upwell.edge.case_collection.case_database import FILE_NAME
from upwell.edge.case_collection.case_delivery import CaseAway, CaseCarrier, FolderHome, Put
from upwell.edge.case_collection.case_file_encryption import UnreadableCase, pack, unpack
from upwell.edge.case_collection.cases_section import CasesSection
from upwell.edge.case_collection.collected_case import CaseFacts, CaseSignature, CollectedCase
from upwell.shared.errors import ConfigError
from upwell.tools.cases.case_source import KEY_VARIABLE, CaseFolder
from upwell.tools.cli import build_app


@pytest.fixture
def cloud() -> Iterator[ScriptedCloud]:
    with ScriptedCloud() as cloud:
        yield cloud


ALL: dict[str, Any] = {"collect": {"random": 1.0}}


def section(to: Path, **more: str) -> dict[str, Any]:
    return {**STATE, "cases": {"to": str(to), "every": "1s", **more}}


def home(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.case"))


def test_cases_come_home_once_with_both_answers_and_are_read_from_there(tmp_path: Path, cloud: ScriptedCloud) -> None:
    to = tmp_path / "share"
    to.mkdir()
    with spooling_agent(tmp_path, {**SPOOLED, **ALL}, cloud, section(to)) as it:
        it.proxy.refuse()
        it.ask(1, camera="dock")
        until(lambda: len(home(to)) == 1, 10.0)
        assert CaseFolder(to).facts()[0].cloud_digest == ""
        it.proxy.restore()
        it.ask(2)
        until(lambda: len(home(to)) == 2 and all(facts.cloud_digest for facts in CaseFolder(to).facts()), 20.0)
        stamps = [path.stat().st_mtime_ns for path in home(to)]
    with spooling_agent(tmp_path, {**SPOOLED, **ALL}, cloud, section(to)) as it:  # a restart sends nothing twice
        it.ask(3)
        until(lambda: len(home(to)) == 3, 10.0)
    assert [path.stat().st_mtime_ns for path in home(to) if path.stat().st_mtime_ns in stamps] != []
    assert set(stamps) <= {path.stat().st_mtime_ns for path in home(to)}
    listed = run("cases", "list", str(to), "--json")["cases"]
    assert {one["tags"].get("camera", "") for one in listed} == {"dock", ""}
    with CaseFolder(to).reading() as read:
        first = read(listed[0]["id"])
    assert first.pictures() == {"image": picture(1)}
    assert first.cloud_outputs().keys() == {"scores"}
    run("cases", "export", str(to), "--set", "all", "--format", "imagefolder", "--out", str(tmp_path / "x"), "--json")
    run("cases", "purge", str(to), "--tag", "camera=dock", "--yes", "--json")
    assert len(home(to)) == 2


def test_a_sealed_case_shows_nothing_without_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to, key = tmp_path / "share", tmp_path / "key"
    to.mkdir()
    key.write_text(os.urandom(32).hex())
    with spooling_agent(tmp_path, {**EASY, **ALL}, None, section(to, key_file=str(key))) as it:
        it.ask(1, mark=MARK, camera="dock")
        until(lambda: len(home(to)) == 1, 10.0)
    data = home(to)[0].read_bytes()
    assert MARK not in data
    assert b"dock" not in data
    with pytest.raises(ConfigError, match="sealed"):
        CaseFolder(to).facts()
    monkeypatch.setenv(KEY_VARIABLE, str(key))
    assert CaseFolder(to).facts()[0].tags == {"camera": "dock"}
    home(to)[0].write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ConfigError, match="another key"):
        CaseFolder(to).facts()


def test_a_folder_that_is_away_is_tried_again_and_what_a_new_policy_denies_stays(tmp_path: Path) -> None:
    to = tmp_path / "stick" / "cases"
    with spooling_agent(tmp_path, {**EASY, **ALL}, None, section(to)) as it:
        it.ask(1, privacy="device")
        it.ask(2)
        kept(it, 2)
        deny = {"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"}
        it.write_policy({**EASY, **ALL}, rules=[deny])
        until(lambda: bool(it.agent.router.verdict("digits", {"privacy": "device"}, (1,)).egress_rule))
        assert not home(tmp_path)
        to.parent.mkdir()
        to.mkdir()
        until(lambda: len(home(to)) == 1, 10.0)
    assert "privacy" not in CaseFolder(to).facts()[0].tags


def _where_it_is_evening() -> str:
    """A time zone in which five sixths of the day are over: so much of a day's budget is there for what can wait."""
    ahead_h = (20 - datetime.now(timezone.utc).hour + 11) % 24 - 11
    return f"Etc/GMT{-ahead_h:+d}"  # their signs are turned round


def test_the_budget_of_the_policy_bounds_what_comes_home(tmp_path: Path) -> None:
    to = tmp_path / "share"
    to.mkdir()
    defaults = {**EASY, **ALL, "budget": {"uplink": "12kB/day"}}
    with spooling_agent(tmp_path, defaults, None, section(to), timezone=_where_it_is_evening()) as it:
        for index in range(12):
            it.ask(index)
        kept(it, 12)
        until(lambda: len(home(to)) >= 1, 10.0)
        name, became = "upwell_cases_home_total", {"became": "over_budget"}
        until(lambda: bool(it.agent.metrics.registry.get_sample_value(name, became)), 10.0)
    assert 1 <= sum(path.stat().st_size for path in home(to)) <= 12_000
    assert len(home(to)) < 12


class Away:
    """A storage that can be asked for an address and not reached."""

    where = "nowhere"
    tries = 0

    def ready(self, id: str, size_bytes: int) -> Put:
        return self._put

    def _put(self, data: bytes) -> None:
        self.tries += 1
        raise CaseAway("no route to host", is_unsent=True)


def test_a_case_that_never_left_costs_no_budget(tmp_path: Path) -> None:
    defaults = {**EASY, **ALL, "budget": {"uplink": "1MB/day"}}
    every = CasesSection.model_validate({"to": str(tmp_path), "every": "1s"})
    with spooling_agent(tmp_path, defaults, None, timezone=_where_it_is_evening()) as it:
        it.ask(1)
        kept(it, 1)
        to, router = Away(), it.agent.router
        carrier = CaseCarrier(every, to, it.folder / "state" / FILE_NAME, router)
        until(lambda: to.tries >= 2, 10.0)
        carrier.close()
        assert {one.spent for windows in router.state.budgets.windows.values() for one in windows} == {0.0}


def test_a_folder_without_room_is_said_before_a_budget_is_charged(tmp_path: Path) -> None:
    to = FolderHome(tmp_path, "dock")
    with pytest.raises(CaseAway, match=r"\d+ bytes are free, \d+ are needed"):
        to.ready("0" * 32, 1 << 60)
    to.ready("0" * 32, 4)(b"case")
    assert home(tmp_path)[0].read_bytes() == b"case"


def test_what_a_power_cut_left_of_a_case_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "dock" / ".case.0123abcd.new"
    left.parent.mkdir()
    left.touch()
    FolderHome(tmp_path, "dock").ready("0" * 32, 4)(b"case")
    assert [one.read_bytes() for one in left.parent.iterdir()] == [b"case"]


def test_a_share_that_tells_no_sizes_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=0, used=0, free=0))
    FolderHome(tmp_path, "dock").ready("0" * 32, 4)(b"case")
    assert home(tmp_path)[0].read_bytes() == b"case"


def test_damaged_files_and_wrong_keys_are_named(tmp_path: Path) -> None:
    signature = CaseSignature(has_rows=False, inputs=(), outputs=())
    facts = CaseFacts(id="0" * 32, model="m", created_unix_s=1.0, why=("hard",), signature=signature)
    case = CollectedCase(facts, b"request", b"edge", b"")
    key = os.urandom(32)
    for sealed in (None, key):
        data = pack(case, sealed)
        assert unpack(data, facts.id, sealed) == case
        for broken in (b"", data[:8], data[:20], data[:-1], data + b"x", b"X" + data[1:]):
            with pytest.raises(UnreadableCase):
                unpack(broken, facts.id, sealed)
        with pytest.raises(UnreadableCase):
            unpack(data, "1" * 32, sealed)
    late = CollectedCase(facts.model_copy(update={"created_unix_s": 1e300}), b"", b"", b"")
    half = pack(CollectedCase(facts.model_copy(update={"agent": "abcdef"}), b"", b"", b""), None)
    for hostile in (pack(late, None), half.replace(b"abcdef", b"\\ud800")):  # text and times that nothing can show
        with pytest.raises(UnreadableCase):
            unpack(hostile, facts.id, None)
    with pytest.raises(UnreadableCase, match="it is truncated"):
        unpack(half[:-1], facts.id, None)
    (tmp_path / "key").write_text("short")
    with (
        pytest.raises(ConfigError, match="32 random bytes"),
        spooling_agent(tmp_path, EASY, None, section(tmp_path, key_file=str(tmp_path / "key"))),
    ):
        pass
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
    for id in ("1", "2", "3"):
        (tmp_path / f"{id * 32}.case").write_bytes(pack(case, key))
    with pytest.raises(
        ConfigError, match=r"1111\.case: .* it is encrypted; .* \(the same with 2 other files\)"
    ) as refused:
        CaseFolder(tmp_path).facts()
    assert len(refused.value.problems) == 1
    assert len(CaseFolder(tmp_path).unreadable()) == 3
    (tmp_path / "odd.case").write_bytes(b"nothing")
    done = CliRunner().invoke(build_app(["cases"]), ["cases", "list", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    assert "odd.case" in str(done.exception)


def test_an_erased_case_is_overwritten_on_disk_before_its_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{'0' * 32}.case").write_bytes(b"a face")
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.pread(descriptor, 100, 0)))
    assert CaseFolder(tmp_path).erase(["0" * 32]) == 1
    assert (synced, home(tmp_path)) == ([bytes(6)], [])


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    signature = CaseSignature(has_rows=False, inputs=(), outputs=())
    for digit, camera in (("0", "dock"), ("1", "gate")):
        facts = CaseFacts(
            id=digit * 32, model="m", created_unix_s=1.0, why=("hard",), signature=signature, tags={"camera": camera}
        )
        (tmp_path / f"{facts.id}.case").write_bytes(pack(CollectedCase(facts, b"request", b"edge", b""), None))
    odd = tmp_path / f"{'2' * 32}.case"
    odd.write_bytes(b"nothing")
    assert [one["tags"]["camera"] for one in run("cases", "list", str(tmp_path), "--json")["cases"]] == ["dock", "gate"]
    assert odd.name in caplog.text
    purge = ["cases", "purge", str(tmp_path), "--tag", "camera=dock", "--yes"]
    done = CliRunner().invoke(build_app(["cases"]), purge)
    assert done.exit_code == 1, done.output
    assert "forgotten: 1 case\n" in done.output
    assert f"{odd} is kept" in done.output
    assert [path.name[0] for path in home(tmp_path)] == ["1", "2"]


def test_a_case_that_the_disk_garbled_holds_no_other_up_and_is_erased_by_its_tags(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to, config = tmp_path / "share", str(tmp_path / "agent.yaml")
    to.mkdir()
    with spooling_agent(tmp_path, {**EASY, **ALL}, None, STATE) as it:
        it.ask(1, camera="dock")
        it.ask(2, camera="gate")
        kept(it, 2)
    with closing(sqlite3.connect(tmp_path / "state" / FILE_NAME)) as cases, cases:
        cases.execute("UPDATE cases SET facts = '[]' WHERE tags LIKE '%dock%'")
    with spooling_agent(tmp_path, {**EASY, **ALL}, None, section(to)):
        until(lambda: len(home(to)) == 1, 10.0)
    assert [one["tags"] for one in run("cases", "list", config, "--json")["cases"]] == [{"camera": "gate"}]
    assert "1 case cannot be read" in caplog.text
    assert run("cases", "purge", config, "--tag", "camera=dock", "--json")["cases"] == 1
    with closing(sqlite3.connect(tmp_path / "state" / FILE_NAME)) as cases:
        assert cases.execute("SELECT count(*) FROM bodies").fetchone() == (1,)


def test_a_case_that_a_renamed_device_sent_again_is_erased_in_both_folders(tmp_path: Path) -> None:
    signature = CaseSignature(has_rows=False, inputs=(), outputs=())
    facts = CaseFacts(id="0" * 32, model="m", created_unix_s=1.0, why=("hard",), signature=signature)
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        sent = pack(CollectedCase(facts, b"request", b"edge", b""), None)
        (tmp_path / name / f"{facts.id}.case").write_bytes(sent)
    assert run("cases", "purge", str(tmp_path), "--all", "--yes", "--json")["cases"] == 1
    assert not home(tmp_path)
