"""Signatures of the package model-signing hold here, and ours hold there.

`model_signing/bundle` was signed by model-signing 1.1.1 with a key on P-256, which is what the package takes; it takes
no Ed25519 keys. Where UPWELL_MODEL_SIGNING names the Python of an environment with that package (and pyOpenSSL, which
it imports and does not ask for) the package itself is run, too:

    python -m venv /tmp/sig && /tmp/sig/bin/pip install model-signing==1.1.1 pyopenssl
    UPWELL_MODEL_SIGNING=/tmp/sig/bin/python python -m pytest tests/interop/test_model_signing.py
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.unit.edge.bundle.bundles import keys, make, signed
from upwell.edge.bundle.bundle import SIGNATURE_NAME, BundleRefused, Refusal, Trust
from upwell.edge.bundle.open_bundle import open_bundle

COMMITTED = Path(__file__).parent / "model_signing"
PYTHON = os.environ.get("UPWELL_MODEL_SIGNING", "")
with_package = pytest.mark.skipif(not PYTHON, reason="UPWELL_MODEL_SIGNING names no Python with model-signing")


def package(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the package's command line, or a script for `-c`."""
    return subprocess.run([PYTHON, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def test_a_signature_of_the_package_holds_here(tmp_path: Path) -> None:
    folder, public = COMMITTED / "bundle", COMMITTED / "p256.pub.pem"
    bundle = open_bundle(folder, Trust((public,), require=True), newer_than=6)
    assert bundle.version == 7
    assert bundle.signed_by == hashlib.sha256(public.read_bytes()).hexdigest()
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    make(copy, {}, name="letters", version=8)
    with pytest.raises(BundleRefused, match=r"covers other files: 'manifest\.json'") as caught:
        open_bundle(copy, Trust((public,)))
    assert caught.value.refusal is Refusal.WRONG_SIGNATURE


@with_package
@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: str(curve.name))
def test_what_the_package_signs_holds_here(tmp_path: Path, curve: ec.EllipticCurve) -> None:
    private, public = keys(tmp_path, "key", ec.generate_private_key(curve))
    folder = make(tmp_path / "b").folder
    signature = folder / SIGNATURE_NAME
    done = package("-m", "model_signing", "sign", "key", folder, "--signature", signature, "--private_key", private)
    assert done.returncode == 0, done.stderr
    assert open_bundle(folder, Trust((public,), require=True)).signed_by


@with_package
@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: str(curve.name))
def test_what_is_signed_here_holds_in_the_package(tmp_path: Path, curve: ec.EllipticCurve) -> None:
    private, public = keys(tmp_path, "key", ec.generate_private_key(curve))
    folder = signed(tmp_path / "b", private).folder
    verify = "-m", "model_signing", "verify", "key", folder, "--signature", folder / SIGNATURE_NAME
    done = package(*verify, "--public_key", public)
    assert done.returncode == 0, done.stderr
    (folder / "labels.txt").write_bytes(b"c\nd\n")
    assert package(*verify, "--public_key", public).returncode == 1


@with_package
def test_the_package_takes_no_ed25519_key_yet(tmp_path: Path) -> None:
    """When this fails, docs/bundles.md can say that Ed25519 signatures hold in the package, too."""
    private, public = keys(tmp_path, "key")
    folder = signed(tmp_path / "b", private).folder
    arguments = folder, "--signature", folder / SIGNATURE_NAME, "--public_key", public
    done = package("-m", "model_signing", "verify", "key", *arguments)
    assert done.returncode == 1
    assert "no attribute 'curve'" in done.stderr


_READ = """
import base64, json, pathlib, sys
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from model_signing import hashing
from model_signing._signing import sign_sigstore_pb, signing
folder, public = map(pathlib.Path, sys.argv[1:])
bundle = sign_sigstore_pb.Signature.read(folder / "model.sig").bundle
envelope = bundle.dsse_envelope
load_pem_public_key(public.read_bytes()).verify(envelope.signatures[0].sig, sign_sigstore_pb.pae(envelope.payload))
said = signing.dsse_payload_to_manifest(json.loads(envelope.payload))
found = hashing.Config().set_ignored_paths(paths=["model.sig"]).hash(folder)
assert said == found, (said, found)
assert said.model_name == "digits"
"""


@with_package
def test_but_for_the_kind_of_key_the_package_reads_an_ed25519_signature(tmp_path: Path) -> None:
    """Its own reader, encoding and digests, with the one call that it lacks: `verify` of an Ed25519 key."""
    private, public = keys(tmp_path, "key")
    done = package("-c", _READ, signed(tmp_path / "b", private).folder, public)
    assert done.returncode == 0, done.stderr
