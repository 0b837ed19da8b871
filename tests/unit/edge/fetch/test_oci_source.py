"""Bundles in a real OCI registry: by tag, by digest, with credentials, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.bundle_servers import FileServer, Registry, need_registry
from tests.faults.certificates import Authority
from upwell.edge.bundle.bundle import BundleRefused, Refusal
from upwell.edge.updates.sources.base import AvailableBundle, FetchFailed, Source
from upwell.edge.updates.sources.source_opening import open_source

DATA = bytes(range(256)) * 500
SHA256 = hashlib.sha256(DATA).hexdigest()
PASSWORD = "a-secret-of-the-tests"  # noqa: S105  of a registry that lives as long as a test
HASHED = "$2b$04$oFNQ8szl8lwsSP8ulYOvseTlpuhKxADaFodJBKt5LZT22bGgX13uO"  # bcrypt of it, as htpasswd writes it


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    need_registry()
    with Registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "digits.bundle.tar"
    path.write_bytes(DATA)
    return path


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ORAS_USER", "ORAS_PASS", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def nobody(_there: int, _whole: int) -> None:
    pass


def offer_of(source: Source) -> AvailableBundle:
    offer = source.newest()
    assert offer is not None
    return offer


def refusal_of(text: str, digest: str = "") -> BundleRefused:
    source = open_source(text, digest=digest)
    try:
        with pytest.raises(BundleRefused) as caught:
            source.newest()
        return caught.value
    finally:
        source.close()


def fetched(text: str, into: Path, ca: Path | None = None) -> bytes:
    source = open_source(text, ca=ca)
    try:
        return source.fetch(offer_of(source), into, nobody).read_bytes()
    finally:
        source.close()


def test_a_tag_and_a_digest_name_the_same(registry: Registry, archive: Path, tmp_path: Path) -> None:
    digest = registry.push(archive, "fleet/digits:1")
    source = open_source(f"oci://{registry.address}/fleet/digits:1")
    offer = offer_of(source)
    assert offer == AvailableBundle(digest, SHA256, len(DATA))
    assert source.fetch(offer, tmp_path / "in", nobody).read_bytes() == DATA
    source.close()
    assert fetched(f"oci://{registry.address}/fleet/digits@{digest}", tmp_path / "again") == DATA


def test_a_moved_tag_is_something_new(registry: Registry, archive: Path) -> None:
    source = open_source(f"oci://{registry.address}/digits:moving")
    assert source.newest() is None
    registry.push(archive, "digits:moving")
    before = offer_of(source)
    archive.write_bytes(DATA[1:])
    registry.push(archive, "digits:moving")
    assert offer_of(source).token != before.token
    source.close()


def test_the_archive_may_be_pinned_as_well(registry: Registry, archive: Path) -> None:
    registry.push(archive, "digits:pinned")
    text = f"oci://{registry.address}/digits:pinned"
    assert refusal_of(text, "sha256:" + "0" * 64).refusal is Refusal.DIGEST_MISMATCH
    source = open_source(text, digest=f"sha256:{SHA256}")
    assert offer_of(source).sha256 == SHA256
    source.close()


def test_a_manifest_that_is_not_the_one_named_is_refused(tmp_path: Path) -> None:
    """A real registry never does this; one that was taken over would."""
    digest = "sha256:" + hashlib.sha256(b"another").hexdigest()
    (tmp_path / "www").mkdir()
    with FileServer(tmp_path / "www") as server:
        server.answers[f"v2/digits/manifests/{digest}"] = lambda: (200, {}, b"{}")
        refused = refusal_of(f"oci://127.0.0.1:{server.port}/digits@{digest}")
        server.answers["v2/digits/manifests/1"] = lambda: (200, {"Docker-Content-Digest": digest}, b"{}")
        assert refusal_of(f"oci://127.0.0.1:{server.port}/digits:1").refusal is Refusal.DIGEST_MISMATCH
    assert refused.refusal is Refusal.DIGEST_MISMATCH
    assert digest in str(refused)


def test_a_layer_that_is_not_the_one_named_is_refused(registry: Registry, archive: Path, tmp_path: Path) -> None:
    content = DATA + b"spoilt"
    archive.write_bytes(content)
    registry.push(archive, "digits:spoilt")
    registry.blob(hashlib.sha256(content).hexdigest()).write_bytes(DATA + b"SPOILT")
    source = open_source(f"oci://{registry.address}/digits:spoilt")
    with pytest.raises(BundleRefused) as caught:
        source.fetch(offer_of(source), tmp_path / "in", nobody)
    assert caught.value.refusal is Refusal.DIGEST_MISMATCH
    source.close()


def test_other_artifacts_are_refused(registry: Registry, archive: Path) -> None:
    registry.push(archive, "digits:image", kind="application/vnd.oci.image.config.v1+json")
    refused = refusal_of(f"oci://{registry.address}/digits:image")
    assert refused.refusal is Refusal.MALFORMED
    assert "application/vnd.oci.image.config.v1+json" in str(refused)
    registry.push(archive, "digits:zip", layer="application/zip")
    assert "1 layers, 0 of them of type" in str(refusal_of(f"oci://{registry.address}/digits:zip"))


def test_a_blob_is_taken_up_where_it_broke_off(archive: Path, tmp_path: Path) -> None:
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "artifactType": "application/vnd.upwell.bundle.v1",
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": "sha256:" + "0" * 64, "size": 2},
            "layers": [
                {"mediaType": "application/vnd.upwell.bundle.v1.tar", "digest": f"sha256:{SHA256}", "size": len(DATA)}
            ],
        }
    ).encode()
    blobs = tmp_path / "www/v2/digits/blobs"
    blobs.mkdir(parents=True)
    (blobs / f"sha256:{SHA256}").write_bytes(DATA)
    with FileServer(tmp_path / "www") as server:
        server.answers["v2/digits/manifests/1"] = lambda: (200, {}, manifest)
        source = open_source(f"oci://127.0.0.1:{server.port}/digits:1")
        offer = offer_of(source)  # before it stalls: then it ends each connection, and this one is used again
        server.stall_after = 1000
        server.release.set()
        with pytest.raises(FetchFailed, match="broke"):
            source.fetch(offer, tmp_path / "in", nobody)
        server.stall_after = None
        assert source.fetch(offer, tmp_path / "in", nobody).read_bytes() == DATA
        assert [one.start for one in server.asked if "blobs" in one.path] == [0, 1000]
        source.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Registry]:
    need_registry()
    with Registry(tmp_path, users=f"device:{HASHED}\n") as registry:
        yield registry


def test_credentials_come_from_the_environment_or_docker_and_are_not_told(
    guarded: Registry, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    text = f"oci://{guarded.address}/digits:latest"
    failures = []
    for user, password in (("", ""), ("device", "wrong-" + PASSWORD)):
        monkeypatch.setenv("ORAS_USER", user)
        monkeypatch.setenv("ORAS_PASS", password)
        with pytest.raises(FetchFailed, match="no access to digits") as caught:
            fetched(text, tmp_path / "in")
        failures.append(str(caught.value))
    monkeypatch.delenv("ORAS_USER")
    auth = base64.b64encode(f"device:{PASSWORD}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {guarded.address: {"auth": auth}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    guarded.push(archive, credentials=("device", PASSWORD))
    assert fetched(text, tmp_path / "in") == DATA
    assert PASSWORD not in "".join(failures) + caplog.text
    assert auth not in caplog.text


def test_a_registry_with_its_own_certificate(archive: Path, tmp_path: Path) -> None:
    need_registry()
    authority = Authority(tmp_path)
    with Registry(tmp_path, pair=authority.sign("registry")) as registry:
        registry.push(archive, ca=authority.ca)
        assert fetched(f"oci://{registry.address}/digits:latest", tmp_path / "in", authority.ca) == DATA


def test_a_token_is_fetched_from_a_safe_address_alone(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    with FileServer(tmp_path / "www") as server:
        challenge = 'Bearer realm="http://tokens.example.com/token",service="tests"'
        server.answers["v2/digits/manifests/1"] = lambda: (401, {"Www-Authenticate": challenge}, b"")
        source = open_source(f"oci://127.0.0.1:{server.port}/digits:1")
        with pytest.raises(FetchFailed, match="no safe token address"):
            source.newest()
        source.close()


def test_a_token_is_used_and_renewed(tmp_path: Path) -> None:
    """What hosted registries do: 401 with the address of tokens, each good for a while."""
    (tmp_path / "www").mkdir()
    with FileServer(tmp_path / "www") as server:
        challenge = (
            f'Bearer realm="http://127.0.0.1:{server.port}/token",service="tests",scope="repository:digits:pull"'
        )
        given: list[str] = []

        def give() -> tuple[int, dict[str, str], bytes]:
            given.append(f"token-{len(given)}")
            return 200, {}, json.dumps({"token": given[-1]}).encode()

        def manifest() -> tuple[int, dict[str, str], bytes]:
            shown = server.shown.get("Authorization", "")
            if given and shown == f"Bearer {given[-1]}":
                return 404, {}, b""
            return 401, {"Www-Authenticate": challenge}, b""

        server.answers["token?service=tests&scope=repository%3Adigits%3Apull"] = give
        server.answers["v2/digits/manifests/1"] = manifest
        source = open_source(f"oci://127.0.0.1:{server.port}/digits:1")
        assert source.newest() is None
        assert source.newest() is None
        assert given == ["token-0"]
        given.append("expired")
        assert source.newest() is None
        assert given == ["token-0", "expired", "token-2"]
        source.close()
