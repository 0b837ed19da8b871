"""Installs the Upwell agent on a device from the wheels beside this script; upgrades it with a trial; removes it.

It needs nothing but Python 3.10 or later with its standard library, and systemd; no network. Two environments lie
side by side, /opt/upwell/a and b, and `current` points to the one in use: an upgrade creates the other, switches, and
switches back if the agent does not start and stay up.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import grp
import json
import os
import platform
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

UNIT = "upwell-agent.service"
USER = "upwell-agent"
HOME = Path("/opt/upwell")
CURRENT = HOME / "current"
ETC = Path("/etc/upwell-agent")
STATE = Path("/var/lib/upwell-agent")
UNIT_FILE = Path("/etc/systemd/system") / UNIT
SCRIPT = HOME / "upwell-device"
TRIAL = HOME / "trial.json"
MADE = HOME / "made.json"
MOST_STARTS = 3
ACCELERATOR_GROUPS = ("video", "render")


class InstallFailed(Exception):
    """What is wrong, and what is expected."""


def run(*words: object, check: bool = True, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a program. With `check`, raises `InstallFailed` with its output if it failed."""
    listed = [str(word) for word in words]
    done = subprocess.run(listed, text=True, capture_output=True, check=False, cwd="/")  # noqa: S603  no shell
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-15:]
        raise InstallFailed(f"{' '.join(map(str, words))} ended with {done.returncode}:\n  " + "\n  ".join(said))
    if not quiet and done.stderr.strip():
        print(done.stderr.strip(), file=sys.stderr)
    return done


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file atomically; its content is on the disk before its name is."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.chmod(mode)
    beside.replace(path)


def read_json(path: Path) -> dict[str, object]:
    """The object in a file; empty if the file is missing or torn."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def requirements(wheels: Path) -> Path:
    """The list of wheels for this machine's Python and processor. Raises `InstallFailed`."""
    name = f"requirements-cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}.txt"
    found = wheels / name
    if not found.is_file():
        there = ", ".join(sorted(one.name for one in wheels.glob("requirements-*.txt"))) or "none"
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise InstallFailed(
            f"{wheels} has no {name}, so no wheels for this machine; it has {there}\n"
            f"make it with: upwell release wheelhouse FOLDER --python {python} --machine {platform.machine()}"
        )
    return found


def make_environment(slot: Path, wheels: Path) -> str:
    """Create a virtual environment with exactly the listed wheels, each checked against its digest; return its
    version of Upwell.
    """
    listed = requirements(wheels)
    pip = max(wheels.glob("pip-*.whl"), default=None)
    if pip is None:
        raise InstallFailed(f"{wheels} has no wheel of pip; make the folder with `upwell release wheelhouse`")
    shutil.rmtree(slot, ignore_errors=True)
    try:
        run(sys.executable, "-m", "venv", "--without-pip", slot)
        python = slot / "bin" / "python"
        # From the wheel itself: Debian's venv has no pip unless python3-venv is installed.
        options = ("--isolated", "--no-cache-dir", "--disable-pip-version-check", "--no-index")
        run(python, pip / "pip", "install", *options, "--find-links", wheels, "--require-hashes", "-r", listed)
        os.sync()  # all of it is on the disk before `current` points to it
        return run(slot / "bin" / "upwell", "--version", quiet=True).stdout.strip()
    except InstallFailed:
        shutil.rmtree(slot, ignore_errors=True)
        raise


def switch(slot: Path) -> None:
    """Point `current` there, atomically."""
    beside = HOME / "current.new"
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    beside.symlink_to(slot.name)
    os.replace(beside, CURRENT)
    descriptor = os.open(HOME, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def other_slot() -> Path:
    """The slot that is not in use."""
    return HOME / ("b" if CURRENT.resolve().name == "a" else "a")


def show(name: str) -> str:
    """A property of the unit."""
    return run("systemctl", "show", "--property", name, "--value", UNIT, check=False, quiet=True).stdout.strip()


def why_not() -> str:
    """The agent's last log lines."""
    said = run("journalctl", "--unit", UNIT, "--lines", "12", "--output", "cat", "--no-pager", check=False, quiet=True)
    return "\n  ".join(("the agent did not start; its output:", *said.stdout.strip().splitlines()))


def stays_up(trial_s: float) -> str:
    """Restart the agent and watch it. Returns an empty text once it has run long enough without a restart, otherwise
    the reason.
    """
    run("systemctl", "reset-failed", UNIT, check=False, quiet=True)
    if run("systemctl", "restart", UNIT, check=False, quiet=True).returncode:
        return why_not()
    restarts, until_s = show("NRestarts"), time.monotonic() + trial_s
    while True:
        if show("ActiveState") != "active" or show("NRestarts") != restarts:
            return why_not()
        if time.monotonic() >= until_s:
            return ""
        time.sleep(min(0.5, trial_s))


def install(wheels: Path, settings: Path, trial_s: float) -> None:
    """Install the agent on this device with the settings in that folder, and start it. All or nothing."""
    if CURRENT.is_symlink():
        raise InstallFailed(f"{CURRENT} already exists; expected `upgrade`, or `remove` first")
    if not (settings / "agent.yaml").is_file():
        raise InstallFailed(f"{settings} has no agent.yaml; expected a folder with it and with the files that it names")
    if MADE.exists():
        raise InstallFailed("an installation was cut short; expected `remove` first (--keep-state keeps the state)")
    for path in (HOME, ETC, UNIT_FILE):
        if path.exists():
            raise InstallFailed(f"{path} already exists and was not made by this script; move it away first")
    if shutil.which("systemctl") is None:
        raise InstallFailed("systemctl is missing; expected a system that runs systemd")
    had_state = STATE.exists()
    try:
        HOME.mkdir(parents=True)
        write(MADE, json.dumps({"user": make_user() or bool(read_json(STATE / MADE.name).get("user"))}))
        version = make_environment(HOME / "a", wheels)
        switch(HOME / "a")
        keep_script()
        copy_settings(settings)
        write(UNIT_FILE, unit_text(wheels))
        run("systemctl", "daemon-reload")
        run("systemctl", "enable", UNIT, quiet=True)
        if problem := stays_up(trial_s):
            raise InstallFailed(problem)
    except (InstallFailed, OSError, KeyboardInterrupt):
        print("installation failed: everything is removed from the device again", file=sys.stderr)
        remove(keep_state=had_state)
        raise
    print(f"{version} runs as {UNIT}; {enrolment()}")


def keep_script() -> None:
    """Put this script on the device, which runs it before each start of the agent: whole, or not at all."""
    write(SCRIPT, Path(__file__).resolve().read_text(encoding="utf-8"), 0o755)


def make_user() -> bool:
    """Create the user that the agent runs as; whether it did not exist."""
    with contextlib.suppress(KeyError):
        pwd.getpwnam(USER)
        return False
    run("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", STATE,
        "--shell", "/usr/sbin/nologin", "--comment", "Upwell agent", USER)  # fmt: skip
    return True


def copy_settings(settings: Path) -> None:
    """Copy the folder's files; only root may change them, and the agent may read them."""
    shutil.copytree(settings, ETC)
    group = grp.getgrnam(USER).gr_gid
    for path in (ETC, *ETC.rglob("*")):
        os.chown(path, 0, group, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o750 if path.is_dir() else 0o640)


def unit_text(wheels: Path) -> str:
    """The unit, with those accelerator groups that exist: it would not start with any other."""
    text = (wheels / UNIT).read_text(encoding="utf-8")
    there = []
    for name in ACCELERATOR_GROUPS:
        with contextlib.suppress(KeyError):
            grp.getgrnam(name)
            there.append(name)
    return text.replace("SupplementaryGroups=video render", f"SupplementaryGroups={' '.join(there)}".rstrip("="))


def enrolment() -> str:
    """The state of the enrolment with the fleet."""
    if (STATE / "fleet" / "cert.pem").exists():
        return "it has enrolled in its fleet"
    if (STATE / "fleet").exists():
        return "it has not enrolled in its fleet yet and keeps trying"
    return "its agent.yaml names no fleet"


def upgrade(wheels: Path, trial_s: float) -> None:
    """Install another version beside the one in use and run it on trial; switch back if it does not start and stay
    up.
    """
    if not CURRENT.is_symlink():
        raise InstallFailed(f"{CURRENT} is missing; expected `install` first")
    with (HOME / "upgrade.lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallFailed("another `upgrade` is running; expected one at a time") from None
        replace_version(wheels, trial_s)


def replace_version(wheels: Path, trial_s: float) -> None:
    """The steps of an upgrade, one process at a time."""
    former, slot = CURRENT.resolve(), other_slot()
    if former.name == read_json(TRIAL).get("to"):
        raise InstallFailed(
            f"the version in {former} is still on trial, and the one to go back to is in {slot}; "
            "expected `upgrade` once `status` no longer shows a trial"
        )
    version = make_environment(slot, wheels)
    write(TRIAL, json.dumps({"from": former.name, "to": slot.name, "starts": 0, "trial_s": trial_s}))
    switch(slot)
    problem = stays_up(trial_s)
    if not problem and CURRENT.resolve() != slot:
        problem = "it was started too often"
    if problem:
        switch(former)
        TRIAL.unlink(missing_ok=True)
        again = stays_up(min(trial_s, 5.0))
        raise InstallFailed(
            f"{version} is abandoned; the previous version runs again: {problem}" + (again and f"\n{again}")
        )
    TRIAL.unlink(missing_ok=True)
    keep_script()
    print(f"{version} runs as {UNIT}; the previous version is in {former}")


def guard() -> None:
    """Before each start of the agent: abandon a version on trial that never stays up.

    The upgrade watches by itself; this is for one that was cut short, for example by a power failure. Starts are
    counted until one has stayed up for the time of the trial. No date is compared: without a battery, every boot may
    begin in 1970.
    """
    trial = read_json(TRIAL)
    trial_s, starts, former = trial.get("trial_s"), trial.get("starts"), trial.get("from")
    if not isinstance(trial_s, (int, float)) or not isinstance(starts, int) or former not in ("a", "b"):
        TRIAL.unlink(missing_ok=True)
    elif starts >= MOST_STARTS:
        abandon(former, f"started {starts} times without success")
    else:
        try:
            write(TRIAL, json.dumps({**trial, "starts": starts + 1}))
        except OSError as error:  # a start that is not counted could fail for ever
            abandon(former, f"its starts cannot be counted ({error.strerror})")
        else:
            check_later(starts + 1, trial_s)


def abandon(former: str, why: str) -> None:
    """Go back to the version in the slot `former`."""
    print(f"{why}: going back to the previous version", file=sys.stderr)
    switch(HOME / former)
    TRIAL.unlink(missing_ok=True)


def check_later(start: int, wait_s: float) -> None:
    """Have systemd call `end_trial` for that start after a time."""
    with contextlib.suppress(OSError):  # without systemd-run only `upgrade` ends a trial
        run("systemd-run", "--quiet", "--collect", f"--on-active={max(1, round(wait_s))}", SCRIPT, "guard",
            "--started", start, check=False)  # fmt: skip


def end_trial(start: int) -> None:
    """End the trial if the agent has stayed up since its start of that number, or has ended for good since then."""
    trial = read_json(TRIAL)
    trial_s, former, state = trial.get("trial_s"), trial.get("from"), show("ActiveState")
    if trial.get("starts") != start or not isinstance(trial_s, (int, float)):
        return
    if state == "failed" and former in ("a", "b"):  # systemd does not start it again, as after an exit with status 2
        abandon(former, "it ended and is not started again")
        run("systemctl", "start", "--no-block", UNIT, check=False)
    elif state in ("active", "activating"):
        since_s = float(show("ActiveEnterTimestampMonotonic") or "inf") / 1e6
        up_s = time.monotonic() - since_s if state == "active" else 0.0
        if up_s >= trial_s:
            TRIAL.unlink(missing_ok=True)
        else:
            check_later(start, trial_s - max(0.0, up_s))


def remove(*, keep_state: bool) -> None:
    """Remove everything that `install` put on the device, and the agent's state."""
    made = read_json(MADE)
    if UNIT_FILE.exists():
        run("systemctl", "disable", "--now", UNIT, check=False, quiet=True)
        UNIT_FILE.unlink()
        run("systemctl", "daemon-reload", check=False)
        run("systemctl", "reset-failed", UNIT, check=False, quiet=True)
    for path in (ETC, Path("/run/upwell-agent"), *(() if keep_state else (STATE,))):
        shutil.rmtree(path, ignore_errors=True)
    if made.get("user") and not keep_state:
        run("userdel", USER, check=False, quiet=True)
    elif made and STATE.is_dir():
        write(STATE / MADE.name, json.dumps(made))  # for the next `install`, whose `remove` also deletes the user
    shutil.rmtree(HOME, ignore_errors=True)


def status() -> None:
    """Show what runs."""
    if not CURRENT.is_symlink():
        raise InstallFailed("not installed")
    slot = CURRENT.resolve()
    version = run(slot / "bin" / "upwell", "--version", quiet=True).stdout.strip()
    trial = ", on trial" if TRIAL.exists() else ""
    print(f"{version} in {slot}{trial}; {UNIT} is {show('ActiveState')}; {enrolment()}")


def seconds(text: str) -> float:
    """A number of seconds. Raises `ValueError`: with NaN or infinity a trial would never end."""
    found = float(text)
    if not 0.0 <= found <= 86400.0:
        raise ValueError(text)
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 done, 1 failed, 2 wrong use."""
    parser = argparse.ArgumentParser(prog="upwell-device", description=__doc__)
    parser.add_argument("--wheels", type=Path, default=Path(__file__).resolve().parent,
                        help="the folder that `upwell release wheelhouse` made (this script's own)")  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("install", help="install the agent on this device and start it")
    one.add_argument("settings", type=Path, help="a folder with agent.yaml and the files that it names")
    two = commands.add_parser(
        "upgrade", help="install another version on trial; goes back by itself if it does not stay up"
    )
    for each, default in ((one, 5.0), (two, 60.0)):
        each.add_argument("--trial", type=seconds, default=default, help="seconds it must stay up (%(default)s)")
    three = commands.add_parser("remove", help="remove everything")
    three.add_argument("--keep-state", action="store_true", help="keep the agent's state, its key and its user")
    commands.add_parser("status", help="show the running version")
    commands.add_parser("guard", help=argparse.SUPPRESS).add_argument("--started", type=int)
    asked = parser.parse_args(words)
    if os.geteuid() != 0 and asked.command != "status":
        print("upwell-device: it changes the system: run it as root", file=sys.stderr)
        return 2
    try:
        if asked.command == "install":
            install(asked.wheels, asked.settings, asked.trial)
        elif asked.command == "upgrade":
            upgrade(asked.wheels, asked.trial)
        elif asked.command == "remove":
            remove(keep_state=asked.keep_state)
        elif asked.command == "status":
            status()
        elif asked.started is None:
            guard()
        else:
            end_trial(asked.started)
    except (InstallFailed, OSError) as error:  # such as a full disk
        print(f"upwell-device: {error}", file=sys.stderr)
        return int(asked.command != "guard")  # a disk that takes nothing must not keep the agent from starting
    return 0


if __name__ == "__main__":
    sys.exit(main())
