"""What a device checks of a release by itself: its document, its order, its floor and the pieces of its files."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tuf.api.metadata import TargetFile

from tests.faults.scene import until
from tests.unit.edge.agents import MODEL, SURE, edge_model, policy, rows_of, scene, sides
from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.models.edge_model import EdgeModel, ServedModel
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.updates.model_versions.model_switching import ModelSwitching
from upwell.edge.updates.releases.device_floor import DeviceFloor
from upwell.edge.updates.releases.fleet_choice import FleetChoice, KeptFleetChoice
from upwell.edge.updates.releases.release_control import ReleaseControl
from upwell.edge.updates.releases.release_document import Payload, ReleaseDocument, parse_document
from upwell.edge.updates.releases.release_source import ReleaseSource
from upwell.edge.updates.releases.release_switching import ReleaseSwitching
from upwell.edge.updates.releases.repository_transport import FolderTransport, check_small
from upwell.edge.updates.releases.tuf_client import ReleaseRepository
from upwell.edge.updates.sources.base import AvailableBundle
from upwell.edge.updates.sources.partial_archive import Partial
from upwell.shared.routing.policy.policy import Policy

SHA256 = hashlib.sha256(b"policy").hexdigest()


def document(source: str = "") -> ReleaseDocument:
    return ReleaseDocument(name="fleet", sequence=2, policy=Payload(sha256=SHA256, size_bytes=6, source=source))


def refusal_of(error: pytest.ExceptionInfo[BundleRefused]) -> Refusal:
    return error.value.refusal


def nobody(_there: int, _whole: int) -> None:
    pass


def test_a_document_under_the_number_of_another_is_refused() -> None:
    assert parse_document(document().text, 2) == document()
    with pytest.raises(BundleRefused, match="contains release 2") as caught:
        parse_document(document().text, 3)
    assert refusal_of(caught) is Refusal.MALFORMED


def test_a_file_in_a_registry_is_named_by_its_digest() -> None:
    pinned = document(f"oci://registry.example.com/fleet/policy@sha256:{SHA256}")
    assert parse_document(pinned.text, 2) == pinned
    with pytest.raises(BundleRefused, match="expected oci://"):
        parse_document(document("oci://registry.example.com/fleet/policy:stable").text, 2)


class _Repository(ReleaseRepository):
    """One whose `targets` are these, and whose files are in a folder."""

    def __init__(self, folder: Path, targets: dict[str, Any]) -> None:
        super().__init__(FolderTransport(folder), b"", folder)
        self._targets = targets


def repository(folder: Path, text: bytes, *, size_bytes: int = 6) -> _Repository:
    """One that holds `text` as the document that was signed, and signs a payload of that size."""
    (folder / "targets" / "releases").mkdir(parents=True)
    digest = hashlib.sha256(document().text).hexdigest()
    (folder / "targets" / "releases" / f"{digest}.2.json").write_bytes(text)
    signed = TargetFile(len(document().text), {"sha256": digest}, "releases/2.json")
    payload = TargetFile(size_bytes, {"sha256": SHA256}, f"payload/{SHA256}")
    return _Repository(folder, {"releases/2.json": signed, f"payload/{SHA256}": payload})


def test_the_document_is_the_signed_one_to_the_byte(tmp_path: Path) -> None:
    text = document().text
    assert repository(tmp_path / "good", text).document(2) == (document(), text)
    for name, wrong, refusal in (
        ("changed", text.replace(b"86400", b"96400"), Refusal.DIGEST_MISMATCH),
        ("longer", text + b" ", Refusal.TOO_LARGE),
    ):
        with pytest.raises(BundleRefused) as caught:
            repository(tmp_path / name, wrong).document(2)
        assert refusal_of(caught) is refusal


def test_a_payload_is_signed_with_its_size(tmp_path: Path) -> None:
    with pytest.raises(BundleRefused, match="which is not signed") as caught:
        repository(tmp_path, document().text, size_bytes=7).document(2)
    assert refusal_of(caught) is Refusal.UNTRUSTED


@pytest.mark.parametrize(("floor", "current"), [(3, 0), (0, 3), (3, 3)])
def test_nothing_below_the_floor_or_the_installed_release_is_taken(floor: int, current: int) -> None:
    source = object.__new__(ReleaseSource)
    source._store = SimpleNamespace(  # type: ignore[assignment]  # what is read of it
        state=SimpleNamespace(blocklist={4: "it is worse"}, floor=floor, current=current)
    )
    source._check_order(3)
    for sequence, refusal in ((2, Refusal.OLDER), (4, Refusal.BLOCKLISTED)):
        with pytest.raises(BundleRefused) as caught:
            source._check_order(sequence)
        assert refusal_of(caught) is refusal


def test_a_link_leads_out_of_no_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "out").symlink_to(tmp_path)
    floor = DeviceFloor(Policy(), folders=(inside,))
    floor.check_folder(2, inside / "events.jsonl")
    for path in (inside / "out" / "events.jsonl", inside / ".." / "events.jsonl"):
        with pytest.raises(BundleRefused, match=r"outside `floor\.folders`"):
            floor.check_folder(2, path)


def test_a_file_from_a_folder_is_taken_up_within_a_piece(tmp_path: Path) -> None:
    data = bytes(range(256)) * (3 << 12)  # three pieces
    (tmp_path / "payload").write_bytes(data)
    offer = AvailableBundle("a", hashlib.sha256(data).hexdigest(), len(data))
    with Partial(tmp_path / "into", offer, nobody) as begun:
        begun.append(data[: len(data) // 2])
    assert FolderTransport(tmp_path).fetch("payload", offer, tmp_path / "into", nobody).read_bytes() == data


def test_a_small_file_may_have_all_of_its_bytes() -> None:
    assert check_small(iter([b"ab", b"c"]), 3, "it") == b"abc"
    with pytest.raises(BundleRefused, match="it has more than 2 bytes"):
        check_small(iter([b"ab", b"c"]), 2, "it")


def test_a_choice_names_the_release_its_time_and_its_shadow() -> None:
    chosen: list[FleetChoice] = []
    looks: list[bool] = []
    control = object.__new__(ReleaseControl)
    control._choice = SimpleNamespace(keep=lambda one: chosen.append(one) or True)  # type: ignore[assignment, func-returns-value]
    control._updater = SimpleNamespace(look_now=lambda: looks.append(True))  # type: ignore[assignment]
    control.choose(3, 1.5, shadow=4)
    assert chosen == [FleetChoice(sequence=3, not_before_unix_s=1.5, shadow=4)]
    assert looks == [True]


@pytest.mark.parametrize(("former_now_s", "is_refused"), [(0.16, False), (0.02, True)])
def test_a_model_that_seems_too_slow_is_timed_again_beside_the_one_before(
    former_now_s: float, is_refused: bool
) -> None:
    """It was timed at 150 ms: on a busy device the one before takes as long now, whatever it took on an idle one."""
    former, new = edge_model(), edge_model()
    former.durations_s, new.durations_s = [0.02], [0.15]

    def prepare(_: str, edge: EdgeModel) -> None:
        edge.durations_s = [former_now_s if edge is former else 0.15]

    with AgentCore([ServedModel(MODEL, former)], None, Policy()) as agent:
        anything: Any = None
        switching = ReleaseSwitching(agent, ModelSwitching(agent, prepare), anything, anything)
        if is_refused:
            with pytest.raises(BundleRefused, match="takes 150 ms here, the previous version 20 ms") as caught:
                switching._check_speed(MODEL, new, policy("version: 1\ndefaults: {deadline: 50ms}"))
            assert refusal_of(caught) is Refusal.TOO_SLOW
        else:
            switching._check_speed(MODEL, new, policy("version: 1\ndefaults: {deadline: 50ms}"))
    assert former.durations_s == [0.02], "else no late answer of the new one would count in its trial"


def test_a_release_without_the_device_side_of_what_must_stay_on_the_device_is_refused() -> None:
    anything: Any = None

    def keeps(model: str) -> Policy:
        return policy(f"version: 1\nrules: [{{name: ward, match: {{model: {model}, tags: {{a: b}}}}, egress: deny}}]")

    with AgentCore([ServedModel(MODEL, edge_model(), "large")], None, Policy()) as agent:
        switching = ReleaseSwitching(agent, ModelSwitching(agent, lambda *_: None), anything, anything)
        switching._check(MODEL, None, Policy())
        switching._check(MODEL, None, keeps("another"))
        with pytest.raises(BundleRefused, match=f"no bundle of '{MODEL}'.*requests that 'ward' keeps on the device"):
            switching._check(MODEL, None, keeps(MODEL))
    with AgentCore([ServedModel(MODEL, edge_model())], None, Policy()) as agent:
        switching = ReleaseSwitching(agent, ModelSwitching(agent, lambda *_: None), anything, anything)
        with pytest.raises(BundleRefused, match=r"agent\.yaml names none$"):
            switching._check(MODEL, None, Policy())


class Slow:
    """An agent that takes its time to serve `held` again."""

    def __init__(self, agent: AgentCore, held: EdgeModel) -> None:
        self._agent, self._held = agent, held
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def replace_release(self, edges: Mapping[str, EdgeModel | None], policy: Policy) -> None:
        if self._held in edges.values():
            self.begun.set()
            assert self.go_on.wait(60.0)
        self._agent.replace_release(edges, policy)


def test_a_release_that_is_just_being_lost_does_not_come_over_the_next_one() -> None:
    former, bad, next_one = edge_model(), edge_model(), edge_model()
    blocked: list[int] = []
    store: Any = SimpleNamespace(
        state=SimpleNamespace(is_on_trial=True), block=lambda sequence, _: blocked.append(sequence)
    )
    with AgentCore([ServedModel(MODEL, former)], None, Policy()) as agent:
        slow: Any = Slow(agent, former)
        switching = ReleaseSwitching(slow, ModelSwitching(slow, lambda *_: None), store, store)

        def switch(sequence: int, edge: EdgeModel) -> None:
            stored: Any = SimpleNamespace(sequence=sequence, pipelines=None)
            switching._switch(stored, {MODEL: edge}, Policy())

        switch(2, bad)
        trial = bad.trial
        assert trial is not None
        losing = threading.Thread(target=trial.give_up, args=("it failed",))
        losing.start()
        assert slow.begun.wait(60.0)
        switched = threading.Thread(target=switch, args=(3, next_one))
        switched.start()
        switched.join(0.2)  # it waits for the other one
        slow.go_on.set()
        losing.join()
        switched.join()
        assert agent.model(MODEL).edge is next_one
        until(lambda: blocked == [2])


def test_a_first_device_side_leaves_with_the_rejected_release_that_brought_it() -> None:
    blocked: list[int] = []
    store: Any = SimpleNamespace(
        state=SimpleNamespace(is_on_trial=True), block=lambda sequence, _: blocked.append(sequence)
    )
    with scene(device=False) as asked:
        switching = ReleaseSwitching(asked.agent, ModelSwitching(asked.agent, lambda *_: None), store, store)
        stored: Any = SimpleNamespace(sequence=2, pipelines=None)
        switching._switch(stored, {MODEL: edge_model()}, Policy())
        assert sides(asked.infer(rows_of(SURE))) == "e"
        assert switching.go_back(0)
        assert sides(asked.infer(rows_of(SURE))) == "c"
        assert asked.agent.health() == []
        until(lambda: blocked == [2])


def test_the_first_choice_ever_heard_is_still_the_first_after_a_restart(tmp_path: Path) -> None:
    """It may be older than what the device took by itself, and hold only from tonight on."""
    first = FleetChoice(sequence=1, not_before_unix_s=1e12)
    assert KeptFleetChoice(tmp_path / "choice.json").keep(first)
    again = KeptFleetChoice(tmp_path / "choice.json")
    assert (again.now, again.is_first) == (first, True)
    assert not again.keep(first)
    assert again.is_first
    assert again.keep(FleetChoice(sequence=2))
    assert (again.is_first, KeptFleetChoice(tmp_path / "choice.json").is_first) == (False, False)
