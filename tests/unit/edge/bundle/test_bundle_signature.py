"""Signatures: what is signed, by whom, and what each that does not hold is refused with."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.unit.edge.bundle.bundles import FILES, Key, keys, make, passphrase, signed
from upwell.edge.bundle.bundle import MANIFEST_NAME, SIGNATURE_NAME, Bundle, BundleRefused, Refusal, Trust
from upwell.edge.bundle.bundle_signature import (
    MAX_SIGNATURE_BYTES,
    Envelope,
    Signed,
    check_signature,
    digests_of,
    read_envelope,
    sign_bundle,
    signed_bytes,
    statement,
    write_envelope,
)
from upwell.edge.bundle.signing_keys import load_private_key, load_public_key
from upwell.shared.errors import ConfigError

DIGESTS = {"a": "0" * 64, "b/c": "1" * 64}


def refused(folder: Path, trust: Trust, refusal: Refusal) -> str:
    with pytest.raises(BundleRefused) as caught:
        check_signature(folder, trust)
    assert caught.value.refusal is refusal
    return str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        Ed25519PrivateKey.generate(),
        *(ec.generate_private_key(curve) for curve in (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1())),
    ],
    ids=["ed25519", "p256", "p384", "p521"],
)
def test_every_file_and_the_manifest_are_signed(tmp_path: Path, key: Key) -> None:
    private, public = keys(tmp_path, "key", key)
    folder = signed(tmp_path / "bundle", private).folder
    fingerprint = hashlib.sha256(public.read_bytes()).hexdigest()
    assert check_signature(folder, Trust((public,))) == Signed(
        {path: hashlib.sha256((folder / path).read_bytes()).hexdigest() for path in (*FILES, MANIFEST_NAME)},
        fingerprint,
    )


def test_any_one_of_the_trusted_keys_is_enough(tmp_path: Path) -> None:
    (old, old_public), (new, new_public) = (keys(tmp_path, name) for name in ("old", "new"))
    trust = Trust((old_public, new_public), require=True)
    for private, public in ((old, old_public), (new, new_public)):
        found = check_signature(signed(tmp_path / private.stem, private).folder, trust)
        assert found is not None
        assert found.by == hashlib.sha256(public.read_bytes()).hexdigest()


def test_the_key_of_another_is_named(tmp_path: Path) -> None:
    (mine, mine_public), (_, other_public) = (keys(tmp_path, name) for name in ("mine", "other"))
    text = refused(signed(tmp_path / "b", mine).folder, Trust((other_public,)), Refusal.WRONG_SIGNATURE)
    for public in (mine_public, other_public):
        assert hashlib.sha256(public.read_bytes()).hexdigest()[:16] in text
    assert "not trusted" in text


def test_a_signature_under_a_false_hint_does_not_fit(tmp_path: Path) -> None:
    """Whoever has no trusted key can still claim to have signed with it."""
    (mine, _), (_, other_public) = (keys(tmp_path, name) for name in ("mine", "other"))
    folder = signed(tmp_path / "b", mine).folder
    envelope = read_envelope((folder / SIGNATURE_NAME).read_bytes())
    for hint in ("", load_public_key(other_public).fingerprint):
        (folder / SIGNATURE_NAME).write_bytes(write_envelope(Envelope(envelope.payload, envelope.signature, hint)))
        assert "not made with that key" in refused(folder, Trust((other_public,)), Refusal.WRONG_SIGNATURE)


@pytest.mark.parametrize("place", [0, 100, -1])
def test_a_statement_that_was_changed_does_not_fit(tmp_path: Path, place: int) -> None:
    private, public = keys(tmp_path, "key")
    folder = signed(tmp_path / "b", private).folder
    envelope = read_envelope((folder / SIGNATURE_NAME).read_bytes())
    payload = bytearray(envelope.payload)
    payload[place] ^= 1
    changed = Envelope(bytes(payload), envelope.signature, envelope.hint)
    (folder / SIGNATURE_NAME).write_bytes(write_envelope(changed))
    assert "was changed" in refused(folder, Trust((public,)), Refusal.WRONG_SIGNATURE)


def test_a_signature_may_be_required(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "key")
    folder = make(tmp_path / "b").folder
    assert check_signature(folder, Trust((public,))) is None
    assert "upwell model sign" in refused(folder, Trust((public,), require=True), Refusal.UNSIGNED)
    sign_bundle(make(tmp_path / "b"), load_private_key(private, passphrase))
    assert check_signature(folder, Trust()) is None
    with pytest.raises(ConfigError, match="no key is trusted"):
        check_signature(folder, Trust(require=True))


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[" * 100_000, b"\xff", b" " * (MAX_SIGNATURE_BYTES + 1)],
    ids=["0", "{}", "deep", "ff", "big"],
)
def test_what_is_no_signature_is_refused(tmp_path: Path, data: bytes) -> None:
    _, public = keys(tmp_path, "key")
    folder = make(tmp_path / "b").folder
    (folder / SIGNATURE_NAME).write_bytes(data)
    refused(folder, Trust((public,)), Refusal.WRONG_SIGNATURE)


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    document = json.loads(write_envelope(Envelope(statement("m", DIGESTS), b"signature", "hint")))
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(mediaType="text/plain"), "mediaType"),
        (lambda d: d["dsseEnvelope"].update(payloadType="text/plain"), "payloadType"),
        (lambda d: d["dsseEnvelope"].update(payload="%%%"), "base64"),
        (lambda d: d["dsseEnvelope"].update(payload=7), "base64"),
        (lambda d: d["dsseEnvelope"].update(signatures=[]), "signatures"),
        (lambda d: d["dsseEnvelope"]["signatures"].append({"sig": "AAAA"}), "signatures"),
        (lambda d: d["verificationMaterial"].pop("publicKey"), "publicKey"),
    ],
)
def test_envelopes_of_another_kind_are_refused(change: Callable[[dict[str, Any]], None], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_envelope(edited(change))


def test_an_older_writer_leaves_the_hint_out() -> None:
    assert read_envelope(edited(lambda d: d["verificationMaterial"].update(publicKey={"rawBytes": None}))).hint == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(_type="other"), "_type"),
        (lambda d: d.update(predicateType="https://model_signing/Digests/v0.1"), "predicateType"),
        (lambda d: d["subject"].append(d["subject"][0]), "subject"),
        (lambda d: d["subject"][0]["digest"].update(sha256="0" * 64), "not the digest of its resources"),
        (lambda d: d["predicate"]["resources"].pop(), "not the digest of its resources"),
        (lambda d: d["predicate"]["resources"].reverse(), "not the digest of its resources"),
        (lambda d: d["predicate"]["serialization"].update(method="shards"), "method"),
        (lambda d: d["predicate"]["resources"][0].update(algorithm="blake2b"), "algorithm"),
        (lambda d: d["predicate"]["resources"][1].update(name="a"), "twice"),
    ],
)
def test_statements_of_another_kind_are_refused(change: Callable[[dict[str, Any]], None], says: str) -> None:
    document = json.loads(statement("m", DIGESTS))
    change(document)
    with pytest.raises(ValueError, match=says):
        digests_of(json.dumps(document).encode())


def test_a_statement_says_which_files() -> None:
    assert digests_of(statement("m", DIGESTS)) == DIGESTS


def test_files_are_in_the_order_of_their_folders_as_other_signers_have_them() -> None:
    listed = digests_of(statement("m", dict.fromkeys(["b", "a-b", "a/c", "a/b"], "0" * 64)))
    assert list(listed) == ["a/b", "a/c", "a-b", "b"]


def test_the_signed_bytes_are_those_of_dsse() -> None:
    assert signed_bytes(b"hello") == b"DSSEv1 28 application/vnd.in-toto+json 5 hello"


@pytest.mark.parametrize(
    ("key", "digest"),
    [
        (Ed25519PrivateKey.generate(), None),
        (ec.generate_private_key(ec.SECP256R1()), "sha256"),
        (ec.generate_private_key(ec.SECP384R1()), "sha384"),
        (ec.generate_private_key(ec.SECP521R1()), "sha512"),
    ],
    ids=["ed25519", "p256", "p384", "p521"],
)
def test_openssl_agrees_with_the_signature(tmp_path: Path, key: Key, digest: str | None) -> None:
    private, public = keys(tmp_path, "key", key)
    document = json.loads((signed(tmp_path / "b", private).folder / SIGNATURE_NAME).read_text())
    envelope = document["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    (tmp_path / "data").write_bytes(b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload))
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    command = [
        "openssl",
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        str(public),
        "-rawin",
        "-in",
        "data",
        "-sigfile",
        "sig",
    ]
    if digest is not None:
        command += ["-digest", digest]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "Verified Successfully" in done.stdout, done.stderr


# --- Keys


def test_an_encrypted_key_asks_for_its_passphrase(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "key", encrypted=True)
    assert load_private_key(private, passphrase).fingerprint == load_public_key(public).fingerprint
    with pytest.raises(ConfigError, match="passphrase is wrong"):
        load_private_key(private, lambda: "wrong")


def test_a_plain_key_asks_for_none(tmp_path: Path) -> None:
    private, _ = keys(tmp_path, "key")
    load_private_key(private, lambda: pytest.fail("it asked"))


@pytest.mark.parametrize(
    "make", [lambda: rsa.generate_private_key(65537, 2048), lambda: ec.generate_private_key(ec.SECP256K1())]
)
def test_keys_of_another_kind_say_what_is_expected(tmp_path: Path, make: Callable[[], Key]) -> None:
    private, public = keys(tmp_path, "key", make())
    with pytest.raises(ConfigError, match="another kind; expected an Ed25519 key"):
        load_private_key(private, passphrase)
    with pytest.raises(ConfigError, match="another kind; expected an Ed25519 key"):
        load_public_key(public)


def test_the_wrong_half_is_noticed(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "key")
    with pytest.raises(ConfigError, match="this is a private key"):
        load_public_key(private)
    with pytest.raises(ConfigError, match="this is a public key"):
        load_private_key(public, passphrase)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "expected"),
        (b"no key", "expected"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "expected"),
        (b"x" * 70_000, "the key is larger than 65536 bytes"),
    ],
)
def test_what_is_no_key_names_the_file(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=said) as caught:
        load_public_key(path)
    assert caught.value.problems[0].path == path


def test_no_key_and_no_manifest_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the key: No such file"):
        load_public_key(tmp_path / "none.pem")
    private, _ = keys(tmp_path, "key")
    with pytest.raises(ConfigError, match="upwell model pack"):
        sign_bundle(Bundle(tmp_path), load_private_key(private, passphrase))
