"""Make the gRPC code from the .proto files, or check that the committed code is what they give.

    python protos/generate.py [--check] [--venv DIR]

protoc and its gRPC plugin run in an environment of their own with pinned versions, so the result does not
depend on what is installed here. Code made by these versions runs with protobuf 5.29 and everything newer.
"""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent
TOOLS = ("grpcio-tools==1.71.2", "grpcio==1.71.2", "protobuf==5.29.5", "setuptools==80.9.0")
PROTOS = (
    Path("upwell/rpc/agent/v1/agent.proto"),
    Path("upwell/rpc/errors/v1/retry.proto"),
    Path("upwell/rpc/oip/v2/model_config.proto"),
    Path("upwell/rpc/oip/v2/model_repository.proto"),
    Path("upwell/rpc/oip/v2/model_statistics.proto"),
    Path("upwell/rpc/oip/v2/model_stream.proto"),
    Path("upwell/rpc/oip/v2/open_inference_grpc.proto"),
    Path("upwell/rpc/oip/v2/server_settings.proto"),
    Path("upwell/rpc/opamp/v1/anyvalue.proto"),
    Path("upwell/rpc/opamp/v1/opamp.proto"),
)
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
# Clients name the service by the package the protocol publishes; ours differs only inside this process.
OUR_SERVICE, PUBLISHED_SERVICE = "upwell.rpc.oip.v2.GRPCInferenceService", "inference.GRPCInferenceService"


def make_environment(directory: Path) -> Path:
    """Create a virtual environment with the pinned tools (or reuse the one there) and return its interpreter."""
    python = directory / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        venv.create(directory, with_pip=True, clear=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS], check=True)  # noqa: S603 (the pinned tools)
    return python


def generate(python: Path, out: Path) -> None:
    """Write the generated files of `PROTOS` below `out`, the protocol's service under its published path."""
    flags = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    protos = [str(ROOT / proto) for proto in PROTOS]
    subprocess.run([python, "-m", "grpc_tools.protoc", f"-I{ROOT}", *flags, *protos], check=True)  # noqa: S603 (our own files)
    texts = {path: path.read_text() for path in generated(out) if path.name.endswith("_grpc.py")}
    if not any(OUR_SERVICE in text for text in texts.values()):
        raise SystemExit(f"no generated file names {OUR_SERVICE}: has a package line changed?")
    for path, text in texts.items():
        path.write_text(text.replace(OUR_SERVICE, PUBLISHED_SERVICE))


def generated(base: Path) -> list[Path]:
    """Where the generated files lie below `base`."""
    return [(base / proto).with_name(proto.stem + suffix) for proto in PROTOS for suffix in SUFFIXES]


def differences(out: Path) -> Iterator[str]:
    """The lines of a unified diff from the committed files to those in `out`; nothing if they are equal."""
    for old, new in zip(generated(ROOT), generated(out), strict=True):
        before = old.read_text().splitlines() if old.exists() else []
        after = new.read_text().splitlines()
        yield from difflib.unified_diff(before, after, f"committed/{old.name}", f"generated/{new.name}", lineterm="")


def main(argv: list[str] | None = None) -> int:
    """Regenerate (exit 0), or with `--check` compare (exit 1 with a diff if the committed files differ)."""
    parser = argparse.ArgumentParser(description="Make the gRPC code from the .proto files.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the committed code is stale")
    parser.add_argument("--venv", type=Path, help="keep the tools in this directory (default: a temporary one)")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        python = make_environment((args.venv or Path(scratch, "venv")).absolute())
        out = Path(scratch, "out")
        out.mkdir()
        generate(python, out)
        if args.check:
            diff = list(differences(out))
            print("\n".join(diff) or "the generated code is up to date")
            return 1 if diff else 0
        for made, target in zip(generated(out), generated(ROOT), strict=True):
            target.write_text(made.read_text())
            print(target.relative_to(ROOT.parent))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
