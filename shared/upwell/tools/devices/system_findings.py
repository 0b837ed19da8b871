"""What the machine itself reports, without a model runtime: its processor, delegate libraries, device files."""

from __future__ import annotations

import glob
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from upwell.shared.platform.cpu_cores import usable_cores

FEATURES: Mapping[str, str] = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx_vnni": "AVX-VNNI",
    "avx512_vnni": "AVX-512 VNNI",
    "amx_int8": "AMX int8",
    "amx_bf16": "AMX bfloat16",
    "asimd": "NEON",
    "neon": "NEON",
    "asimddp": "dot product",
    "i8mm": "int8 matrix products",
    "asimdhp": "half precision",
    "bf16": "bfloat16",
    "sve": "SVE",
    "sme": "SME",
}
"""Flags of /proc/cpuinfo that affect the speed of int8 models, and with U8S8 their correctness."""

DELEGATES: Mapping[str, str] = {
    "libedgetpu.so.1": "Coral Edge TPU",
    "libvx_delegate.so": "VeriSilicon and NXP NPUs",
    "libethosu_delegate.so": "Arm Ethos-U (NXP)",
    "libarmnnDelegate.so": "Arm NN: Mali, Ethos-N",
    "libQnnTFLiteDelegate.so": "Qualcomm",
    "libneuron_stable_delegate.so": "MediaTek",
    "libneuronusdk_adapter.mtk.so": "MediaTek",
    "libhailort.so": "Hailo (its own runtime, not a delegate)",
    "librknnrt.so": "Rockchip (its own runtime, not a delegate)",
}
"""Vendors' libraries by their names for the system's loader."""

DEVICE_FILES: Mapping[str, str] = {
    "/dev/apex_*": "Coral Edge TPU on PCIe",
    "/dev/accel/accel*": "an accelerator with a driver in the kernel's accel class (Intel NPU, Hailo, AMD XDNA …)",
    "/dev/ethosu*": "Arm Ethos-U",
    "/dev/ethosn*": "Arm Ethos-N",
    "/dev/galcore": "VeriSilicon or NXP GPU/NPU",
    "/dev/rknpu*": "Rockchip NPU",
    "/dev/davinci[0-9]*": "Huawei Ascend",
    "/dev/hailo*": "Hailo",
    "/dev/fastrpc-cdsp*": "Qualcomm Hexagon",
    "/dev/nvhost-*": "NVIDIA Jetson",
    "/dev/nvidia[0-9]*": "NVIDIA GPU",
    "/dev/dri/renderD*": "a GPU",
}
"""Device files that hint at an accelerator. A hint is not evidence: nothing is opened."""

_USB_IDS: Mapping[str, str] = {
    "1a6e:089a": "Coral Edge TPU on USB, before its firmware",
    "18d1:9302": "Coral Edge TPU on USB",
}
_FOLDERS = ("/usr/local/lib", "/usr/lib", "/lib", "/usr/lib64", "/lib64", "/vendor/lib64", "/opt/lib")
_LDCONFIG_S = 10.0


@dataclass(frozen=True)
class SystemFindings:
    """A library or device file that exists, and what it belongs to."""

    path: str
    means: str


@dataclass(frozen=True)
class CpuInfo:
    """The processor: its model if the system reports it, its machine name, the cores usable by this process, and
    features.
    """

    model: str
    machine: str
    cores: int
    features: Sequence[str]


def processor() -> CpuInfo:
    """The processor of this machine."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip().lower(), value.strip())
    except OSError:
        pass  # not Linux: no features are claimed
    flags = set((fields.get("flags") or fields.get("features") or "").split())
    features = dict.fromkeys(text for flag, text in FEATURES.items() if flag in flags)
    model = fields.get("model name") or fields.get("model") or platform.processor()
    return CpuInfo(model, platform.machine(), usable_cores(), tuple(features))


def libraries(folders: Sequence[str] | None = None) -> Sequence[SystemFindings]:
    """The vendors' libraries that the system's loader would find. None is opened."""
    known = _loader_cache() if folders is None else {}
    found = []
    for name, means in DELEGATES.items():
        path = known.get(name) or _in_folders(name, folders if folders is not None else _search_path())
        if path:
            found.append(SystemFindings(path, means))
    return found


def device_files() -> Sequence[SystemFindings]:
    """Device files that hint at an accelerator, and USB devices by their numbers."""
    found = [
        SystemFindings(path, means) for pattern, means in DEVICE_FILES.items() for path in sorted(glob.glob(pattern))
    ]
    for device in sorted(Path("/sys/bus/usb/devices").glob("*/idVendor")):
        try:
            ids = f"{device.read_text().strip()}:{(device.parent / 'idProduct').read_text().strip()}"
        except OSError:
            continue  # just unplugged
        if ids in _USB_IDS:
            found.append(SystemFindings(str(device.parent), _USB_IDS[ids]))
    return found


def _search_path() -> Sequence[str]:
    own = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    machine = platform.machine()
    return [*own, *(f"/usr/lib/{machine}-linux-gnu", f"/lib/{machine}-linux-gnu"), *_FOLDERS]


def _in_folders(name: str, folders: Sequence[str]) -> str:
    return next((path for folder in folders if os.path.isfile(path := os.path.join(folder, name))), "")


def _loader_cache() -> Mapping[str, str]:
    """Library name -> path, from the loader's cache; empty if there is no such cache (musl, macOS)."""
    program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if program is None:
        return {}
    try:
        done = subprocess.run(  # noqa: S603  a fixed command
            [program, "-p"], capture_output=True, text=True, timeout=_LDCONFIG_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    cached: dict[str, str] = {}
    for line in done.stdout.splitlines():
        name, arrow, path = line.partition(" => ")
        if arrow:
            cached.setdefault(name.split()[0], path.strip())
    return cached
