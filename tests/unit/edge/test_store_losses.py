"""What a device still knows of its versions where files of it are lost, damaged or put back from a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.bundles_for_tests import Signer, bundle_folder
from tests.unit.edge.test_store import NO_TRUST, fetched, installed, refusal_of
from upwell.edge.bundle.bundle import Refusal
from upwell.edge.bundle.open_bundle import open_bundle
from upwell.edge.updates.version_state import FLOOR_NAME, STATE_NAME
from upwell.edge.updates.version_store import VersionStore


def test_a_state_that_is_gone_costs_neither_the_newest_version_nor_the_floor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    factory = open_bundle(bundle_folder(tmp_path / "factory", 1))
    store = VersionStore(tmp_path, "digits", NO_TRUST, factory)
    for version in (3, 4):
        installed(store, version)
        store.prove(version)
    (store.folder / STATE_NAME).unlink()
    again = VersionStore(tmp_path, "digits", NO_TRUST, factory)
    opened = again.open()
    assert opened is not None
    assert (opened.version, again.state.current) == (4, 4)
    assert again.state.floor == 4
    assert "going on with the installed version 4" in caplog.text
    assert "is gone" in again.notice
    assert "version 4" in again.notice
    assert refusal_of(lambda: again.install(fetched(again, 2))) is Refusal.OLDER
    caplog.clear()
    later = VersionStore(tmp_path, "digits", NO_TRUST, factory)
    assert (later.state.current, later.notice, caplog.text) == (4, "", "")  # it was written down again


def test_without_state_and_versions_the_floor_still_holds(tmp_path: Path) -> None:
    factory = open_bundle(bundle_folder(tmp_path / "factory", 1))
    store = VersionStore(tmp_path, "digits", NO_TRUST, factory)
    for version in (3, 4):
        installed(store, version)
        store.prove(version)
    for name in ("3", "4"):
        shutil.rmtree(store.folder / name)
    (store.folder / STATE_NAME).unlink()
    again = VersionStore(tmp_path, "digits", NO_TRUST, factory)
    assert again.open() == factory
    assert refusal_of(lambda: again.install(fetched(again, 3))) is Refusal.OLDER
    assert again.state.floor == 4
    assert "although version 4 was in use before" in again.notice
    assert installed(again, 4).version == 4


def test_an_older_copy_of_the_state_brings_no_older_version_back(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    for version in (3, 4):
        installed(store, version)
        store.prove(version)
    copy = (store.folder / STATE_NAME).read_bytes()
    installed(store, 5)
    (store.folder / STATE_NAME).write_bytes(copy)
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    assert (again.state.current, again.state.is_on_trial) == (5, True)
    assert again.state.floor == 4
    assert "older" in again.notice


def test_an_older_copy_of_the_state_does_not_bring_a_condemned_version_back(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    installed(store, 4)
    installed(store, 5)
    copy = (store.folder / STATE_NAME).read_bytes()
    store.block(5, "it failed")
    (store.folder / STATE_NAME).write_bytes(copy)
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    assert (again.state.current, again.state.blocklist) == (4, {5: "it failed"})
    assert refusal_of(lambda: again.install(fetched(again, 5))) is Refusal.BLOCKLISTED
    (again.folder / STATE_NAME).unlink()
    assert VersionStore(tmp_path, "digits", NO_TRUST).state.blocklist == {5: "it failed"}


def test_a_version_that_is_damaged_on_the_disk_does_not_lower_the_floor(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    for version in (3, 5):
        installed(store, version)
        store.prove(version)
    (store.folder / "5" / "model.onnx").write_bytes(b"")
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    opened = again.open()
    assert opened is not None
    assert opened.version == 3
    assert refusal_of(lambda: again.install(fetched(again, 4))) is Refusal.OLDER
    assert again.state.floor == 5
    assert "version 5 is not used" in again.notice
    assert VersionStore(tmp_path, "digits", NO_TRUST).state.current == 3  # not taken for an older copy
    assert installed(again, 5).version == 5


def test_a_stranger_s_folder_is_not_what_a_rebuilt_state_goes_on_with(tmp_path: Path) -> None:
    signer, stranger = Signer(tmp_path), Signer(tmp_path, "stranger")
    store = VersionStore(tmp_path, "digits", signer.trust)
    installed(store, 4, signer=signer)
    for version in (98, 99):
        bundle_folder(store.folder / str(version), version, signer=stranger)
    (store.folder / STATE_NAME).unlink()
    again = VersionStore(tmp_path, "digits", signer.trust)
    assert again.state.current == 4
    assert again.state.floor == 4
    assert installed(again, 5, signer=signer).version == 5


def test_a_first_version_that_was_not_committed_is_not_taken_for_one_whose_state_is_lost(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    store.install(fetched(store, 1))
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    assert (again.state.current, again.open()) == (0, None)
    assert again.notice == ""


def test_a_floor_one_step_behind_loses_nothing(tmp_path: Path) -> None:
    store = VersionStore(tmp_path, "digits", NO_TRUST)
    for version in (1, 2):
        installed(store, version)
    floor = (store.folder / FLOOR_NAME).read_bytes()
    store.block(2, "it is worse")
    (store.folder / FLOOR_NAME).write_bytes(floor)  # as where the power fails between the two files
    again = VersionStore(tmp_path, "digits", NO_TRUST)
    assert (again.state.current, again.state.blocklist, again.notice) == (1, {2: "it is worse"}, "")


def test_a_rebuilt_version_is_on_trial_where_there_is_another_to_go_back_to(tmp_path: Path) -> None:
    factory = open_bundle(bundle_folder(tmp_path / "factory", 1))
    for name, came_with, is_on_trial in (("one", factory, True), ("other", None, False)):
        store = VersionStore(tmp_path, name, NO_TRUST, came_with)
        installed(store, 2)
        (store.folder / STATE_NAME).unlink()
        assert VersionStore(tmp_path, name, NO_TRUST, came_with).state.is_on_trial is is_on_trial
