"""Files that can run code: none is opened that the operator has not listed, and nothing of them escapes a digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from upwell.cloud.config import CloudConfig
from upwell.cloud.engines.trusted_files import read_trusted
from upwell.cloud.repository.model_folders import ModelFolder, scan
from upwell.shared.errors import ModelFailed

PROGRAM = b"a program"
DIGEST = hashlib.sha256(PROGRAM).hexdigest()


def put(root: Path, name: str, content: bytes = PROGRAM) -> ModelFolder:
    path = root / "m" / "1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    (folder,) = scan(root)
    return folder


def test_a_listed_file_is_read(tmp_path: Path) -> None:
    path = put(tmp_path, "model.jax").file("model.jax")
    assert read_trusted(path, {"0" * 64, DIGEST}) == PROGRAM


def test_another_is_refused_and_says_what_to_list(tmp_path: Path) -> None:
    path = put(tmp_path, "model.jax").file("model.jax")
    for trusted in ((), ("0" * 64,), (DIGEST[:-1],), (DIGEST.upper(),)):
        with pytest.raises(ModelFailed) as caught:
            read_trusted(path, trusted)
        text = str(caught.value)
        assert "can run code when loaded, so it must be listed under serve.trusted in cloud.yaml" in text
        assert text.endswith(f"add {DIGEST}")
        assert str(tmp_path) not in text


def test_what_is_returned_is_what_was_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever exchanges the file while it is checked gains nothing: there is one read."""
    path = put(tmp_path, "model.jax").file("model.jax")
    real = hashlib.sha256

    def exchanging(data: bytes) -> object:
        path.write_bytes(b"something else")
        return real(data)

    monkeypatch.setattr("upwell.cloud.engines.trusted_files.hashlib.sha256", exchanging)
    assert read_trusted(path, {DIGEST}) == PROGRAM
    with pytest.raises(ModelFailed, match="must be listed"):
        read_trusted(path, {DIGEST})


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = put(tmp_path, "model.jax").file("model.jax")
    assert read_trusted(path, {DIGEST}, max_bytes=len(PROGRAM)) == PROGRAM
    with pytest.raises(ModelFailed, match=f"model.jax is larger than the limit of {len(PROGRAM) - 1} bytes"):
        read_trusted(path, {DIGEST}, max_bytes=len(PROGRAM) - 1)


def test_the_list_reaches_every_model(tmp_path: Path) -> None:
    config = CloudConfig.model_validate(
        {
            "serve": {"listen": ["unix:x"], "models": str(tmp_path), "trusted": [DIGEST]},
            "models": {"m": {"engine": "jax"}},
        }
    )
    assert config.settings("m").trusted == config.settings("other").trusted == {DIGEST}
    assert config.settings("m").engine == "jax"


@pytest.mark.parametrize("digest", [DIGEST[:-1], DIGEST.upper(), f"sha256:{DIGEST}", 7])
def test_what_is_no_digest_cannot_be_listed(tmp_path: Path, digest: object) -> None:
    with pytest.raises(ValidationError, match="trusted"):
        CloudConfig.model_validate({"serve": {"listen": ["unix:x"], "models": str(tmp_path), "trusted": [digest]}})


def test_the_digest_of_a_program_is_also_of_its_weights(tmp_path: Path) -> None:
    folder = put(tmp_path, "model.jax")
    path = folder.file("model.jax")
    digests = {folder.digest(path)}
    assert digests == {f"sha256:{DIGEST}"}
    for content in (b"weights", b"others"):
        put(tmp_path, "model.safetensors", content)
        digests.add(folder.digest(path))
    assert len(digests) == 3


def test_weights_from_outside_the_repository_are_refused(tmp_path: Path) -> None:
    folder = put(tmp_path / "models", "model.jax")
    (tmp_path / "secret").write_bytes(b"weights")
    (folder.path / "model.safetensors").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelFailed, match=r"m/1/model\.safetensors is a link that leads out of the repository"):
        folder.digest(folder.file("model.jax"))
