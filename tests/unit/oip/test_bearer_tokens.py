from __future__ import annotations

from pathlib import Path

import pytest

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.oip.auth.bearer_tokens import TokensConfig, load_tokens
from upwell.shared.oip.auth.client_token import read_token

HASH = "ab" * 32


def test_a_tokens_file() -> None:
    config = parse_yaml(f"version: 1\ntokens: [{{name: dock-camera-7, sha256: {HASH}}}]\n", TokensConfig)
    assert [(token.name, token.sha256) for token in config.tokens] == [("dock-camera-7", HASH)]
    assert parse_yaml("version: 1\ntokens: []\n", TokensConfig).tokens == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 2\ntokens: []", "version"),
        ("version: 1\ntokens: [{name: a, sha256: secret}]", "sha256"),
        (f"version: 1\ntokens: [{{name: a, sha256: {HASH.upper()}}}]", "sha256"),
        (f"version: 1\ntokens: [{{name: '', sha256: {HASH}}}]", "name"),
        (f"version: 1\ntokens: [{{name: a, token: x, sha256: {HASH}}}]", "token"),
        (f"version: 1\ntokens: [{{name: a, sha256: {HASH}}}, {{name: a, sha256: {'c' * 64}}}]", "'a' is repeated"),
    ],
)
def test_a_wrong_tokens_file(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, TokensConfig)


@pytest.mark.parametrize("entry", ["{name: a, sha256: s3cr3t}", "s3cr3t", "{name: a, sha256: 5331}"])
def test_a_token_in_the_place_of_its_hash_is_not_shown(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"version: 1\ntokens: [{entry}]\n")
    with pytest.raises(ConfigError, match=r"tokens.yaml:2:.*expected") as error:
        load_tokens(path)
    assert "s3cr3t" not in str(error.value)
    assert "5331" not in str(error.value)


def test_a_token_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  s3cr3t\n")
    assert read_token(path) == "s3cr3t"


@pytest.mark.parametrize("data", [b"", b"\n", b"two words", b"two\nlines", b"gr\xc3\xbcn", b"a\0b"])
def test_a_wrong_token_file_is_not_shown(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="expected a single token of visible ASCII") as error:
        read_token(path)
    assert str(error.value) == f"{path}: expected a single token of visible ASCII characters without spaces"
