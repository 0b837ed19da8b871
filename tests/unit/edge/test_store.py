"""Bundles side by side on a device: what is current, what was before, and what a crash leaves."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.bundles_for_tests import Signer, archive_of, bundle_archive, bundle_folder
from upwell.edge.bundle.bundle import SIGNATURE_NAME, Bundle, BundleRefused, Refusal, Trust
from upwell.edge.bundle.open_bundle import open_bundle
from upwell.edge.updates import version_store
from upwell.edge.updates.model_versions import rollback_by_hand
from upwell.edge.updates.sources.base import FetchFailed
from upwell.edge.updates.version_state import (
    FLOOR_NAME,
    FOLDER_NAME,
    ROLLBACK_ANSWER_NAME,
    STATE_NAME,
    Look,
    read_document,
    versions_folder,
)
from upwell.edge.updates.version_store import AlreadyInstalled, VersionStore
from upwell.shared.files import replacing

NO_TRUST = Trust()


def fetched(store: VersionStore, version: int, **about: object) -> Path:
    """An archive where a source would have put it."""
    store.downloads.mkdir(exist_ok=True)
    path = store.downloads / "download.bundle.tar"
    return bundle_archive(path, version, **about)  # type: ignore[arg-type]  # names and sizes


def installed(store: VersionStore, version: int, **about: object) -> Bundle:
    bundle = store.install(fetched(store, version, **about))
    store.commit(bundle, f"offer {version}")
    return bundle


def versions(store: VersionStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir() if path.name not in (STATE_NAME, FLOOR_NAME))


def refusal_of(action: Callable[[], object]) -> Refusal:
    with pytest.raises(BundleRefused) as caught:
        action()
    return caught.value.refusal


def test_versions_lie_side_by_side_and_older_ones_go(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    assert store.open() is None
    for version in (1, 2, 3):
        bundle = installed(store, version)
        assert open_bundle(bundle.folder).version == version
        again = VersionStore(tmp_path, "digits", NO_TRUST)
        assert again.open() == bundle
        assert again.state.look == Look(key=f"offer {version}")
    assert versions(store) == ["2", "3"]
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_what_is_not_committed_is_not_served(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    installed(store, 1)
    store.install(fetched(store, 2))
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    bundle = again.open()
    assert bundle is not None
    assert bundle.version == 1
    assert versions(again) == ["1", "incoming"]
    assert again.install(fetched(again, 2)).version == 2


def test_a_folder_is_installed_too(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    folder = bundle_folder(store.downloads / "folder", 4)
    store.commit(store.install(folder), "")
    assert versions(store) == ["4"]
    assert open_bundle(store.folder / "4").version == 4


def test_each_reason_to_refuse_leaves_the_old_one(tmp_path: Path) -> None:
    signer, stranger = Signer(tmp_path), Signer(tmp_path, "stranger")
    store = VersionStore(tmp_path, "digits", signer.trust)
    installed(store, 2, signer=signer)
    spoilt = bundle_folder(tmp_path / "spoilt", 3, signer=signer)
    (spoilt / "labels.txt").write_text("one\nzero\n")
    archive = archive_of(spoilt, tmp_path / "spoilt.bundle.tar")
    assert refusal_of(lambda: store.install(archive)) is Refusal.TAMPERED
    archive.write_bytes(bundle_archive(tmp_path / "x.bundle.tar", 3, signer=signer).read_bytes()[:-3000])
    assert refusal_of(lambda: store.install(archive)) is Refusal.TRUNCATED
    assert refusal_of(lambda: store.install(fetched(store, 3, size=1))) is Refusal.UNSIGNED
    assert refusal_of(lambda: store.install(fetched(store, 3, size=2, signer=stranger))) is Refusal.WRONG_SIGNATURE
    assert refusal_of(lambda: store.install(fetched(store, 2, size=3, signer=signer))) is Refusal.OLDER
    assert refusal_of(lambda: store.install(fetched(store, 1, signer=signer))) is Refusal.OLDER
    assert refusal_of(lambda: store.install(fetched(store, 3, name="pages", signer=signer))) is Refusal.OTHER_MODEL
    store.settle(Look(key="that one", refusal=Refusal.OTHER_MODEL, message="no"))
    assert versions(store) == ["2"]
    again = VersionStore(tmp_path, "digits", signer.trust)
    assert again.state.look.refusal is Refusal.OTHER_MODEL
    assert again.open() is not None


def test_a_version_that_was_rolled_back_does_not_come_again(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    installed(store, 1)
    installed(store, 2)
    store.block(2, "every tenth request failed")
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    for one in (store, again):
        opened = one.open()
        assert opened is not None
        assert opened.version == one.state.current == 1
        assert one.state.blocklist == {2: "every tenth request failed"}
        assert one.state.look.refusal is Refusal.BLOCKLISTED
        assert refusal_of(lambda: again.install(fetched(again, 2))) is Refusal.BLOCKLISTED
    assert installed(again, 3).version == 3


def test_a_version_is_on_trial_until_it_is_proven_also_over_restarts(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    installed(store, 1)
    assert not store.state.is_on_trial  # there is nothing to go back to
    installed(store, 2)
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    again.prove(1)  # too late to say so
    assert again.state.is_on_trial
    former = again.open(2)
    assert former is not None
    assert former.version == 1
    assert again.open(1) is None
    again.prove(2)
    assert not VersionStore(tmp_path, "digits", NO_TRUST).state.is_on_trial


def test_a_version_on_trial_that_keeps_ending_the_agent_is_given_up(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    installed(store, 1)
    installed(store, 2)
    served = []
    for _ in range(4):
        store = VersionStore(tmp_path, "digits", NO_TRUST)  # the one before was killed
        store.begin()
        served.append(store.state.current)
    assert served == [2, 2, 1, 1]
    assert store.state.blocklist == {2: "the agent exited 3 times while it was on trial"}
    installed(store, 3)
    for _ in range(10):
        store = VersionStore(tmp_path, "digits", NO_TRUST)
        store.begin()
        store.stop_trying()  # the agent was told to end
    assert (store.state.current, store.state.is_on_trial) == (3, True)


def test_a_device_that_is_switched_off_again_and_again_gives_up_no_version_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot, now_s = ["first"], [1000.0]
    monkeypatch.setattr(version_store, "boot_id", lambda: boot[0])
    monkeypatch.setattr(version_store, "time", SimpleNamespace(monotonic=lambda: now_s[0], time=lambda: 0.0))
    for version in (1, 2):
        installed(VersionStore(tmp_path, "digits", NO_TRUST), version)

    def start(up_s: float, next_boot: str) -> int:
        store = VersionStore(tmp_path, "digits", NO_TRUST)  # the one before was killed, with the device or without
        store.begin()
        now_s[0] += up_s
        store.stay()
        boot[0] = next_boot
        return store.state.current

    stays = version_store.STAYS_S
    assert [start(stays, f"boot {number}") for number in range(10)] == [2] * 10
    assert [start(stays - 1, f"boot {number}") for number in range(10, 13)] == [2, 2, 1]  # it does not stay
    installed(VersionStore(tmp_path, "digits", NO_TRUST), 3)
    assert [start(stays, "same") for _ in range(4)] == [3, 3, 3, 1]  # the agent ended, not the device


def test_what_a_full_disk_does_not_take_holds_for_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    installed(store, 1)
    installed(store, 2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        store.begin()
        store.block(2, "it failed")
        assert store.state.current == 1
    assert caplog.text.count("No space left") == 2
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    assert (again.state.current, again.state.is_on_trial) == (2, True)  # so it is tried out again, and goes back again


def test_the_same_version_signed_again_brings_its_signature(tmp_path: Path) -> None:
    signer, next_signer = Signer(tmp_path), Signer(tmp_path, "next")
    both = Trust((signer.public, next_signer.public), require=True)
    store = VersionStore(tmp_path, "digits", both)
    installed(store, 2, signer=signer)
    again = bundle_folder(store.downloads / "again", 2, signer=next_signer)
    with pytest.raises(AlreadyInstalled):
        store.install(again)
    bundle = VersionStore(tmp_path, "digits", next_signer.trust).open()
    assert bundle is not None
    assert (bundle.version, bundle.signed_by) == (2, next_signer.key.fingerprint)
    assert refusal_of(lambda: store.install(fetched(store, 2, size=1, signer=signer))) is Refusal.OLDER


def test_the_condemned_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_store, "_MOST_BLOCKED", 3)
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    for version in (7, 1, 9, 8):
        store.block(version, "x" * 10_000)
    assert sorted(store.state.blocklist) == [7, 8, 9]
    assert len((store.folder / STATE_NAME).read_text()) < 3000


@pytest.mark.parametrize("damage", ["changed", "shortened", "missing", "added", "another"])
def test_a_damaged_version_is_refused_at_the_next_start(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    installed(store, 1)
    folder = installed(store, 2).folder
    model = folder / "model.onnx"
    if damage == "changed":
        model.write_bytes(bytes(2000))
    elif damage == "shortened":
        os.truncate(model, 10)
    elif damage == "missing":
        model.unlink()
    elif damage == "added":
        (folder / "more.bin").write_bytes(b"")
    else:
        shutil.rmtree(folder)
        shutil.copytree(store.folder / "1", folder)
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    bundle = again.open()
    assert bundle is not None
    assert bundle.version == 1
    assert "the installed version 2 is not used" in caplog.text
    assert again.state.look == Look()  # so that it is fetched again
    assert installed(again, 2).version == 2


def test_keys_that_are_not_trusted_now_do_not_cost_the_bundle(tmp_path: Path) -> None:
    signer, stranger = Signer(tmp_path), Signer(tmp_path, "stranger")
    installed(VersionStore(tmp_path, "digits", signer.trust), 1, signer=signer)
    assert VersionStore(tmp_path, "digits", stranger.trust).open() is None
    assert VersionStore(tmp_path, "digits", signer.trust).open() is not None


def test_the_factory_bundle_is_fallen_back_on_and_goes_before_older_ones(tmp_path: Path) -> None:
    factory = open_bundle(bundle_folder(tmp_path / "factory", 5))
    store = VersionStore(tmp_path, "digits", NO_TRUST, factory)
    assert store.open() == factory
    assert refusal_of(lambda: store.install(fetched(store, 5, size=1))) is Refusal.OLDER
    with pytest.raises(AlreadyInstalled):
        store.install(fetched(store, 5))
    assert refusal_of(lambda: store.install(fetched(store, 6, name="pages"))) is Refusal.OTHER_MODEL
    newer = installed(store, 6)
    assert VersionStore(tmp_path, "digits", NO_TRUST, factory).open() == newer
    newest = open_bundle(bundle_folder(tmp_path / "newer", 7))
    assert VersionStore(tmp_path, "digits", NO_TRUST, newest).open() == newest
    other = open_bundle(bundle_folder(tmp_path / "other", 1, name="pages"))
    assert VersionStore(tmp_path, "digits", NO_TRUST, other).open() == other
    store.block(6, "it failed")
    assert store.open() == factory


def test_a_disk_that_takes_nothing_is_a_failure_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    bundle = installed(store, 1)
    path = fetched(store, 2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(FetchFailed, match="No space left"):
            store.install(path)
        with pytest.raises(FetchFailed, match="No space left"):
            store.commit(bundle, "")
    assert versions(store) == ["1", "incoming"]
    assert store.install(path).version == 2


UNREADABLE = (b"", b"{", b"\0" * 300, b"\xff", b"[" * 10_000, json.dumps({"current": "x"}).encode())


@pytest.mark.parametrize("data", UNREADABLE, ids=repr)
def test_a_state_that_cannot_be_read_is_rebuilt_from_the_versions_there(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    for version in (9, 10):
        installed(store, version)
    store.prove(10)
    (store.folder / STATE_NAME).write_bytes(data)
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    assert "going on with the installed version 10" in caplog.text
    former = again.open(10)
    assert former is not None
    assert (again.state.current, former.version) == (10, 9)
    assert again.state.is_on_trial  # it may be one that was rolled back
    caplog.clear()
    assert VersionStore(tmp_path, "digits", NO_TRUST).state.current == 10
    assert caplog.text == ""  # what was rebuilt was written down
    assert refusal_of(lambda: again.install(fetched(again, 11, name="pages"))) is Refusal.OTHER_MODEL
    assert refusal_of(lambda: again.install(fetched(again, 8))) is Refusal.OLDER
    installed(again, 11)
    assert versions(again) == ["10", "11"]


def test_what_is_damaged_or_was_never_whole_is_no_part_of_a_rebuilt_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    for version in (1, 2):
        installed(store, version)
    (store.folder / "2" / "model.onnx").write_bytes(bytes(2000))
    shutil.copytree(store.folder / "1", store.folder / "3")  # another version than its name says
    shutil.copytree(store.folder / "1", store.folder / "01")
    (store.folder / "4").write_text("a file")
    (store.folder / ".new").mkdir()
    (store.folder / STATE_NAME).write_bytes(b"")
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    bundle = again.open()
    assert bundle is not None
    assert (bundle.version, again.state.is_on_trial) == (1, False)  # there is nothing to go back to
    assert versions(again) == ["1"]
    assert installed(again, 2).version == 2
    shutil.rmtree(store.folder / "1")
    shutil.rmtree(store.folder / "2")
    (store.folder / STATE_NAME).write_bytes(b"")
    factory = open_bundle(bundle_folder(tmp_path / "factory", 1))
    empty = VersionStore(tmp_path, "digits", NO_TRUST, factory)
    assert (empty.open(), empty.state.is_on_trial) == (factory, False)
    assert "going on with nothing installed" in caplog.text


def test_a_rebuilt_state_serves_nothing_that_nobody_trusts(tmp_path: Path) -> None:
    signer, stranger = Signer(tmp_path), Signer(tmp_path, "stranger")
    store = VersionStore(tmp_path, "digits", signer.trust)
    installed(store, 1, signer=signer)
    (store.folder / STATE_NAME).write_bytes(b"")
    assert VersionStore(tmp_path, "digits", stranger.trust).open() is None
    assert VersionStore(tmp_path, "digits", signer.trust).open() is not None


def test_a_rebuilt_state_that_the_disk_does_not_take_holds_for_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    installed(store, 1)
    (store.folder / STATE_NAME).write_bytes(b"")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert VersionStore(tmp_path, "digits", NO_TRUST).open() is not None


def test_what_a_later_version_of_upwell_remembers_costs_no_bundle(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    bundle = installed(store, 1)
    path = store.folder / STATE_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "future": 1}))
    assert VersionStore(tmp_path, "digits", NO_TRUST).open() == bundle


class _Crash(BaseException):
    pass


def test_a_crash_at_any_step_leaves_one_version_or_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call that changes something on disk is, in turn, the one that is not reached any more."""
    for steps in itertools.count():
        state_dir = tmp_path / str(steps)
        store = VersionStore(state_dir, "digits", NO_TRUST)
        installed(store, 1)
        path = fetched(store, 2)
        left = steps

        def counted(wanted: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **named: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    raise _Crash
                return wanted(*arguments, **named)

            return call

        with monkeypatch.context() as patched:
            for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "open", "fsync"):
                patched.setattr(os, name, counted(getattr(os, name)))
            try:
                store.commit(store.install(path), "offer 2")
                crashed = False
            except _Crash:
                crashed = True
        again = VersionStore(state_dir, "digits", NO_TRUST)
        bundle = again.open()
        assert bundle is not None
        assert bundle.version == again.state.current
        assert bundle.version in (1, 2)
        assert not [path for path in again.folder.iterdir() if path.name.startswith(".")]
        if bundle.version == 1:
            assert installed(again, 2).version == 2
        if not crashed:
            assert bundle.version == 2
            break
    assert steps > 5


@given(st.sets(st.text(min_size=1, max_size=60), min_size=2, max_size=20))
def test_no_two_models_share_a_folder(models: set[str]) -> None:
    names = [versions_folder(Path(), model).name for model in models]
    assert len({name.lower() for name in names}) == len(models)
    for name in names:
        assert name == Path(name).name
        assert name not in (".", "..")
        assert len(name) < 200
        assert name.isascii()


@pytest.mark.parametrize(
    ("model", "folder"), [("digits", "digits"), ("..", "%2e%2e"), ("a/b", "a%2fb"), ("Ä b", "%c3%84%20b"), ("A", "%41")]
)
def test_the_folder_of_a_model(tmp_path: Path, model: str, folder: str) -> None:
    store = VersionStore(tmp_path, model, NO_TRUST)
    assert store.folder == tmp_path / FOLDER_NAME / folder
    assert store.folder.is_dir()


def test_an_order_to_go_back_that_comes_while_another_is_taken_is_carried_out_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    for version in (1, 2):
        installed(store, version)
    first, second = (rollback_by_hand.RollbackRequest(id=name, version=9) for name in ("first", "second"))

    def reading(path: Path, kind: type[rollback_by_hand.RollbackRequest]) -> rollback_by_hand.RollbackRequest | None:
        found = read_document(path, kind)
        rollback_by_hand.place(store.folder, second)
        return found

    rollback_by_hand.place(store.folder, first)
    monkeypatch.setattr(rollback_by_hand, "read_document", reading)
    rollback_by_hand.carry_out_rollback(store)
    monkeypatch.undo()
    assert rollback_by_hand.answer_to(store.folder, first) is not None
    assert rollback_by_hand.is_placed(store.folder)
    rollback_by_hand.carry_out_rollback(store)
    assert rollback_by_hand.answer_to(store.folder, second) is not None


def test_an_answer_that_is_being_written_is_not_cleared_away(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    with replacing(store.folder / ROLLBACK_ANSWER_NAME) as file:
        file.write(b"{}")
        store.settle(Look(key="offer 1"))
    assert (store.folder / ROLLBACK_ANSWER_NAME).read_bytes() == b"{}"


def test_models_with_long_names_that_begin_alike_have_folders_of_their_own(tmp_path: Path) -> None:
    one, other = (versions_folder(tmp_path, "m" * 120 + end) for end in "ab")
    assert one != other
    assert len(one.name) < 255


def test_starts_while_an_offer_is_tried_do_not_count_against_the_version_on_trial(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    for version in (1, 2):
        installed(store, version)
    ended = []
    for _ in range(2):
        ended.append(store.trying("the next offer"))
        ended[-1].__enter__()  # the agent ends within
        store = VersionStore(tmp_path, "digits", NO_TRUST)
        tries = store.state.tries
        store.begin()
        assert (store.state.current, store.state.tries) == (2, tries)
    ended.append(store.trying("the next offer"))
    ended[-1].__enter__()
    for _ in range(3):  # it is not tried again, so these ends are the fault of the version on trial
        store = VersionStore(tmp_path, "digits", NO_TRUST)
        store.begin()
        assert store.state.current == 2
        with pytest.raises(BundleRefused, match="exited 3 times while trying it"), store.trying("the next offer"):
            pass
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    store.begin()
    assert store.state.current == 1


def test_what_is_tried_meanwhile_hides_no_start_of_a_version_that_keeps_ending_the_agent(tmp_path: Path) -> None:
    for version in (1, 2):
        installed(VersionStore(tmp_path, "digits", NO_TRUST), version)
    served = []
    for _ in range(3):
        store = VersionStore(tmp_path, "digits", NO_TRUST)  # the one before was killed
        store.begin()
        served.append(store.state.current)
        with store.trying("the shadow release, after every start"):
            pass
    assert served == [2, 2, 1]


def test_a_copied_version_is_on_the_disk_before_it_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    for name in ("sync_tree", "sync_folder"):
        monkeypatch.setattr(version_store, name, lambda path, name=name: steps.append(f"{name} {path.name}"))
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    bundle_folder(store.downloads / "folder", 1)
    store.install(store.downloads / "folder")
    assert steps == ["sync_tree .new", "sync_folder digits"]


def test_another_signature_is_taken_over_unless_it_is_none_or_the_bundle_is_the_factory_s(tmp_path: Path) -> None:
    first, second = Signer(tmp_path), Signer(tmp_path, "second")
    trust = Trust((first.public, second.public), require=False)
    factory = open_bundle(bundle_folder(tmp_path / "factory", 1, signer=first), trust)
    signature = (factory.folder / SIGNATURE_NAME).read_bytes()
    store = VersionStore(tmp_path, "with", trust, factory)
    with pytest.raises(AlreadyInstalled):
        store.install(fetched(store, 1, signer=second))
    assert (factory.folder / SIGNATURE_NAME).read_bytes() == signature
    store = VersionStore(tmp_path, "without", trust)
    bundle = installed(store, 1, signer=first)
    with pytest.raises(AlreadyInstalled):
        store.install(fetched(store, 1))
    assert (bundle.folder / SIGNATURE_NAME).read_bytes() == signature


def test_going_back_to_the_floor_itself_needs_no_leave(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    for version in (1, 2):
        installed(store, version)
    rollback_by_hand.place(store.folder, rollback_by_hand.RollbackRequest(id="a", version=2))
    rollback_by_hand.carry_out_rollback(store)
    assert store.state.current == 1
    request = rollback_by_hand.RollbackRequest(id="another", version=2)
    assert rollback_by_hand.answer_to(store.folder, request) is None
    answer = rollback_by_hand.answer_to(store.folder, request.model_copy(update={"id": "a"}))
    assert answer is not None
    assert answer.version == 1
