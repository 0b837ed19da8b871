"""Who may use which model, and that nobody learns of the others."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from upwell.shared.errors import ConfigError, ModelNotFound, NotAllowed
from upwell.shared.oip.auth import bearer_tokens
from upwell.shared.oip.auth.bearer_tokens import KnownTokens
from upwell.shared.oip.auth.caller import (
    ANONYMOUS,
    Caller,
    Grant,
    Permits,
    calling,
    check_may_control,
    current_caller,
    may_use,
)
from upwell.shared.oip.auth.limit_keys import Limits
from upwell.shared.oip.dataplane import Call, InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane

REQUEST = InferRequest("echo", EXAMPLE)


def caller(*models: str, control: bool = False) -> Caller:
    return Caller("alice", "token:alice", Grant(models or None, control))


@pytest.mark.parametrize(
    ("globs", "model", "permitted"),
    [
        (("echo",), "echo", True),
        (("echo",), "echo2", False),
        (("echo",), "Echo", False),
        (("e*",), "echo", True),
        (("a", "[d-f]cho"), "echo", True),
        (("*",), "", True),
        (("?",), "echo", False),
        (("echo.large",), "echo-large", False),
        (("a", "b"), "ab", False),
    ],
)
def test_globs(globs: tuple[str, ...], model: str, permitted: bool) -> None:
    assert Grant(globs).permits(model) is permitted


def test_no_list_is_every_model_and_an_empty_one_is_none() -> None:
    assert Grant().permits("echo")
    assert not Grant(()).permits("echo")
    assert not Grant(()).permits("")


def test_a_model_that_is_not_permitted_is_refused_alike_whether_it_exists_or_not() -> None:
    plane = Permits(FakeDataplane())
    texts = set()
    with calling(caller("digits-*")):
        for model in ("echo", "none"):
            for ask in (
                lambda name: plane.infer(InferRequest(name, EXAMPLE), Call()),
                plane.metadata,
                plane.ready,
            ):
                with pytest.raises(NotAllowed) as refused:
                    ask(model)
                texts.add(str(refused.value).replace(model, "MODEL"))
    assert texts == {"this caller may not use model 'MODEL'"}


def test_what_is_permitted_passes_and_so_does_everything_without_a_caller() -> None:
    plane = Permits(FakeDataplane())
    for who in (caller("ec*"), caller(), None):
        with calling(who):
            assert plane.infer(REQUEST, Call()).model == "echo"
            assert plane.metadata("echo").name == "echo"
            assert plane.ready("echo")
            assert plane.ready()
            assert plane.server_metadata().name == "fake"


def test_an_unknown_model_tells_the_names_of_others_only_to_who_may_use_all() -> None:
    plane = Permits(FakeDataplane())
    with calling(caller("*")):  # which is written down, and so may be less tomorrow
        with pytest.raises(ModelNotFound, match=r"^Request for unknown model: no model 'secret' here$"):
            plane.metadata("secret")
        with pytest.raises(ModelNotFound, match=r"^model 'echo' has no version '7'$"):
            plane.infer(InferRequest("echo", EXAMPLE, version="7"), Call())
    with calling(caller()), pytest.raises(ModelNotFound, match="expected 'echo'"):
        plane.metadata("secret")


def test_the_caller_ends_with_its_block() -> None:
    with calling(caller("a")):
        assert not may_use("b")
    assert current_caller() is None


def test_control_is_a_right_of_its_own() -> None:
    with calling(caller("a", control=True)):
        check_may_control("a")
        with pytest.raises(NotAllowed, match="may not use"):
            check_may_control("b")
    with calling(caller()), pytest.raises(NotAllowed, match="control: true"):
        check_may_control("a")
    with calling(ANONYMOUS), pytest.raises(NotAllowed):
        check_may_control("a")
    check_may_control("a")  # on a server without tokens


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture
def known(tmp_path: Path) -> KnownTokens:
    path = tmp_path / "tokens.yaml"
    path.write_text(
        f"""\
version: 1
tokens:
  - {{name: alice, sha256: {digest("a")}, models: [digits-*], control: true, limits: {{rate: 5/s}}}}
  - {{name: bob, sha256: {digest("b")}}}
clients:
  - {{name: camera-7, models: [photos], limits: {{concurrency: 1}}}}
  - {{name: camera-*}}
"""
    )
    return KnownTokens(path, asks_certificates=True)


def test_tokens_carry_what_their_entries_say(known: KnownTokens) -> None:
    alice, bob = known.caller_of(b"a"), known.caller_of(b"b")
    assert alice == Caller("alice", "token:alice", Grant(("digits-*",), True, Limits.model_validate({"rate": "5/s"})))
    assert bob == Caller("bob", "token:bob", Grant())
    assert known.caller_of(b"c") is None


def test_half_a_file_neither_widens_an_entry_nor_takes_one_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer_tokens, "REST_S", 3600.0)
    path = tmp_path / "tokens.yaml"
    text = (
        f"version: 1\ntokens:\n  - name: alice\n    sha256: {digest('a')}\n    models: [digits-*]\n"
        f"  - name: bob\n    sha256: {digest('b')}\n"
    )
    path.write_text(text)
    known = KnownTokens(path, asks_certificates=True)
    for half in (text[: text.index("    models")], text[: text.index("  - name: bob")], "version: 1\n", ""):
        path.write_text(half)
        alice, bob = known.caller_of(b"a"), known.caller_of(b"b")
        assert alice is not None
        assert (alice.grant.models, bob is not None) == (("digits-*",), True)
    path.write_text(text[: text.index("  - name: bob")])
    os.utime(path, (1.0, 1.0))  # it was written in place long ago
    assert known.caller_of(b"b") is None


def test_the_first_entry_that_fits_a_certificate_counts(known: KnownTokens) -> None:
    seven, eight = known.holder_of("camera-7"), known.holder_of("camera-8")
    assert seven is not None
    assert eight is not None
    assert (seven.key, seven.grant.models) == ("certificate:camera-7", ("photos",))
    assert (eight.name, eight.key, eight.grant) == ("camera-8", "certificate:camera-8", Grant())
    assert known.holder_of("door-1") is None
    assert known.holder_of("") is None


@pytest.mark.parametrize(
    ("text", "asks_certificates", "message"),
    [
        ("clients: [{name: a}]", False, "only if the server's TLS has a client CA"),
        (f"tokens: [{{name: a, sha256: {digest('a')}, models: ['']}}]", True, "models"),
        (f"tokens: [{{name: a, sha256: {digest('a')}, limits: {{rate: 5}}}}]", True, "limits.rate"),
        (f"tokens: [{{name: a, sha256: {digest('a')}}}, {{name: b, sha256: {digest('a')}}}]", True, "repeated"),
        ("clients: [{name: ''}]", True, "name"),
        ("clients: [{sha256: a}]", True, "name"),
    ],
)
def test_wrong_entries(tmp_path: Path, text: str, asks_certificates: bool, message: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"version: 1\n{text}\n")
    with pytest.raises(ConfigError, match=message):
        KnownTokens(path, asks_certificates=asks_certificates)
