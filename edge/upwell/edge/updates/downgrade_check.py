"""A bundle that is no newer than what is there: an older one, the same again, or another under the same number."""

from __future__ import annotations

from pathlib import Path

from upwell.edge.bundle.base import MANIFEST_NAME, SIGNATURE_NAME, Bundle, BundleRefused, Refusal
from upwell.shared.files import write_whole


class AlreadyInstalled(Exception):
    """What was fetched is the newest version that there is here."""


def check_newer(offered: Bundle, fetched: Path, version: int, folder: Path, *, renew: bool) -> None:
    """Raise `AlreadyInstalled` where the verified bundle `offered` is the one of `version` in `folder`.

    With `renew` its signature is taken over then, for it may be of a newer key. Raises `BundleRefused` (`OLDER`) where
    it is older or another one of that version, and `OSError` where the signature cannot be written.
    """
    if offered.version > version:
        return
    if offered.version < version:
        what = f"is older than the installed version {version}"
    elif _bytes(offered.folder / MANIFEST_NAME) != _bytes(folder / MANIFEST_NAME):
        what = "is installed, with other files"
    else:
        signature = _bytes(offered.folder / SIGNATURE_NAME)
        if renew and signature and signature != _bytes(folder / SIGNATURE_NAME):
            write_whole(folder / SIGNATURE_NAME, signature)
        raise AlreadyInstalled
    raise BundleRefused(Refusal.OLDER, fetched, f"version {offered.version} {what}; a new bundle needs a greater one")


def check_floor(offered: Bundle, fetched: Path, floor: int) -> None:
    """Raise `BundleRefused` (`OLDER`) where it is older than what has been relied on here."""
    if offered.version < floor:
        problem = f"version {offered.version} is older than version {floor}, which was in use on this device"
        raise BundleRefused(Refusal.OLDER, fetched, f"{problem}; a new bundle needs a greater one")


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
