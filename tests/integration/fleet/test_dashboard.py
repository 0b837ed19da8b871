"""The pages of the fleet service in a real browser: log-in, what they show, by keyboard, in dark and light."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.fleet_service import FakeDevice, Service, service, user
from tests.integration.pipelines.preview.browser import CHROMIUM, DRIVER, Browser
from tests.integration.pipelines.preview.test_page import AXE
from upwell.fleet.dashboard import pages
from upwell.fleet.service import server
from upwell.fleet.users import MOST_FAILURES
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.opamp import DRIFT, RELEASE_PACKAGE, STATISTICS

HOSTILE = '<img src=x onerror="document.title=1"></script>'
FORM = {"Content-Type": "application/x-www-form-urlencoded"}

in_a_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(None in (CHROMIUM, DRIVER), reason="chromium and chromium-driver are not installed"),
]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "WRITE_S", 0.05)
        with service(tmp_path_factory.mktemp("fleet")) as running:
            fill(running)
            yield running


def fill(running: Service) -> None:
    for name in ("gate", HOSTILE):
        device = FakeDevice(running, "device")
        device.uid = name.encode().ljust(16, b"-")[:16]
        assert device.enrol(running.enrolment_token(site=name)).status == HTTPStatus.OK
        status = opamp_pb2.PackageStatus(name=RELEASE_PACKAGE, agent_has_version="6")
        packages = opamp_pb2.PackageStatuses(packages={RELEASE_PACKAGE: status})
        device.poll(agent_description=device.description(**{"upwell.agent.name": name}), package_statuses=packages)
        for requests in (100, 250, 300):
            now = {"rtt_s": 0.042, "up_bytes_per_s": 125000.0, "spool_waiting": 7}
            counts: dict[str, Any] = {"requests": requests, "late": requests // 50, "degraded": requests // 10,
                      "degraded.cloud_deadline": requests // 10, "now": now}  # fmt: skip
            counted = {"release": 6, "since_unix_s": 5.0, "counts": counts}
            data = json.dumps(counted).encode()
            device.poll(custom_message=opamp_pb2.CustomMessage(capability=STATISTICS, type="counted", data=data))
            time.sleep(0.2)  # a batch of the service's has the last count of a device alone
        if name == "gate":
            drift = {"models": {"digits": {"findings": ["camera"]}, "plain": {"findings": []}}}
            message = opamp_pb2.CustomMessage(capability=DRIFT, type="found", data=json.dumps(drift).encode())
            device.poll(custom_message=message)


def test_links_spools_reasons_budgets_and_pages_of_devices_are_shown(
    fleet: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = {"Cookie": cookie_of(fleet, fleet.operator).partition(";")[0]}
    fleet.do("PUT", "/budgets/site", {"where": "true", "cloud_share": 0.2})
    fleet.do("POST", "/shadows", {"release": 9, "where": 'name == "gate"'})
    _, _, page = ask(fleet, "GET", "/", headers=cookie)
    for words in ("cloud_deadline: 60", "<dd>42 ms</dd>", "<dd>14</dd>", "<dd>on 1</dd>", "cloud_share 20.0%",
                  "Release 9 runs in shadow on 1 device: 0 lines"):  # fmt: skip
        assert words in page, words
    assert "Next devices" not in page
    monkeypatch.setattr(pages, "PAGE", 1)
    _, _, first = ask(fleet, "GET", "/", headers=cookie)
    (after,) = re.findall(r'href="/\?after=([0-9a-f]+)">Next devices', first)
    _, _, second = ask(fleet, "GET", f"/?after={after}", headers=cookie)
    assert f'hx-get="/?after={after}"' in second, "what refreshes itself stays on its page"
    assert [re.findall(r'href="/devices/(\w+)"', one) for one in (first, second)] == [
        [one["id"]] for one in fleet.get("/devices")["devices"]
    ]
    _, _, device = ask(fleet, "GET", f"/devices/{after}", headers=cookie)
    assert "<dd>125 kB/s</dd>" in device
    assert "cloud_deadline: 30" in device
    assert "<dd>not reported</dd>" in device or "digits: camera, plain: none" in device
    assert ask(fleet, "GET", "/?after=%00", headers=cookie)[0] == HTTPStatus.BAD_REQUEST
    (gate,) = [one["id"] for one in fleet.get("/devices")["devices"] if one["name"] == "gate"]
    assert "<dt>Shadow release</dt><dd>9</dd>" in ask(fleet, "GET", f"/devices/{gate}", headers=cookie)[2]
    fleet.do("DELETE", "/budgets/site")
    fleet.do("DELETE", "/shadows/9")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with closing(Browser(tmp_path_factory.mktemp("browser"))) as browser:
        yield browser


def log_in(browser: Browser, fleet: Service, token: str = "") -> None:
    browser.devtools("Network.clearBrowserCookies")
    browser.open(f"{fleet.url}/")
    browser.until("location.pathname === '/login'")
    browser.press(*(token or fleet.operator), "Enter")
    browser.until("document.querySelector('h1').textContent === 'Fleet'")


def started(fleet: Service) -> str:
    for one in fleet.get("/rollouts")["rollouts"]:
        if one["phase"] == "running":
            return str(one["id"])
    body = {"release": 7, "where": "true", "waves": ["1", "100%"]}
    return str(fleet.do("POST", "/rollouts", body)["id"])


def ask(
    fleet: Service, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, Mapping[str, str], str]:
    """Status, headers and body of one call."""
    context = ssl.create_default_context(cafile=fleet.ca)
    with closing(http.client.HTTPSConnection(fleet.server.addresses[0], context=context, timeout=20)) as connection:
        connection.request(method, path, body, dict(headers or {}))
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read().decode()


def cookie_of(fleet: Service, token: str) -> str:
    status, headers, _ = ask(fleet, "POST", "/login", f"token={token}".encode(), FORM)
    assert status == HTTPStatus.SEE_OTHER
    return headers["set-cookie"]


def test_a_cookie_is_secure_and_needs_a_known_token(fleet: Service) -> None:
    cookie = cookie_of(fleet, fleet.operator)
    assert cookie.startswith("__Host-")
    for word in ("Secure", "HttpOnly", "SameSite=strict", "Path=/"):
        assert word in cookie
    assert fleet.send("POST", "/login", b"token=upwu_wrong", FORM).status == HTTPStatus.UNAUTHORIZED
    value = cookie.partition(";")[0]
    assert fleet.send("GET", "/", headers={"Cookie": value}).status == HTTPStatus.OK
    for forged in (value[:-1] + ("0" if value[-1] != "0" else "1"), "__Host-upwell-fleet=.", "__Host-upwell-fleet=é"):
        status, headers, _ = ask(fleet, "GET", "/", headers={"Cookie": forged})
        assert (status, headers["location"]) == (HTTPStatus.SEE_OTHER, "/login")


def test_a_form_from_elsewhere_changes_nothing_and_a_viewer_halts_nothing(fleet: Service) -> None:
    rollout = started(fleet)
    operator = {**FORM, "Cookie": cookie_of(fleet, fleet.operator).partition(";")[0]}
    assert fleet.send("POST", f"/rollouts/{rollout}/back", b"", operator).status == HTTPStatus.FORBIDDEN
    assert fleet.send("POST", f"/rollouts/{rollout}/back", b"csrf=0", operator).status == HTTPStatus.FORBIDDEN
    viewer = {**FORM, "Cookie": cookie_of(fleet, user(fleet.fleet, "viewer", "viewer")).partition(";")[0]}
    page = fleet.send("GET", f"/rollouts/{rollout}", headers=viewer).body.decode()
    assert "Halt and take back" not in page
    found = re.search(r'name="csrf" value="(\w+)"', page)
    assert found is not None
    refused = fleet.send("POST", f"/rollouts/{rollout}/back", f"csrf={found[1]}".encode(), viewer)
    assert refused.status == HTTPStatus.FORBIDDEN
    assert fleet.get(f"/rollouts/{rollout}")["phase"] == "running"


def test_every_page_has_a_policy_and_takes_nothing_from_elsewhere(fleet: Service) -> None:
    headers = {"Cookie": cookie_of(fleet, fleet.operator).partition(";")[0]}
    for path in ("/", "/rollouts", "/devices/gate", f"/rollouts/{started(fleet)}", "/login", "/static/nothing"):
        _, replied, page = ask(fleet, "GET", path, headers=headers)
        policy = replied["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r'(?:src|href|action)="(?!/)', page), path
        assert "<img" not in page
        assert " style=" not in page
    assert fleet.send("GET", "/devices/nobody", headers=headers).status == HTTPStatus.NOT_FOUND


def test_wrong_tokens_are_slowed_down(tmp_path: Path) -> None:
    with service(tmp_path) as fleet:
        statuses = [fleet.send("POST", "/login", b"token=x", FORM).status for _ in range(MOST_FAILURES + 1)]
        assert statuses == [HTTPStatus.UNAUTHORIZED] * MOST_FAILURES + [HTTPStatus.TOO_MANY_REQUESTS]
        assert fleet.send("POST", "/login", f"token={fleet.operator}".encode(), FORM).status == 429


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
class TestInABrowser:
    pytestmark = in_a_browser

    def test_the_pages_fit_and_show_what_is_there(
        self, browser: Browser, fleet: Service, scheme: str, width: int
    ) -> None:
        browser.look(width, scheme)
        log_in(browser, fleet)
        rollout = started(fleet)
        for path, heading in (("/", "Fleet"), ("/devices/gate", "gate"), (f"/rollouts/{rollout}", "Release 7 to true")):
            browser.open(f"{fleet.url}{path}")
            browser.until(f"document.querySelector('h1').textContent === {json.dumps(heading)}")
            assert browser.run("return document.documentElement.scrollWidth") <= width, path
            times = browser.run("return [...document.querySelectorAll('time')].map(one => one.textContent)")
            assert times
            assert not any(re.fullmatch(r"[\d-]+T[\d:]+Z", one) for one in times)
        assert browser.run("return document.title") != "1"
        assert browser.complaints() == []

    @pytest.mark.skipif(AXE is None, reason="UPWELL_AXE is not set to the path of axe.min.js")
    def test_axe_finds_nothing_to_complain_about(
        self, browser: Browser, fleet: Service, scheme: str, width: int
    ) -> None:
        assert AXE is not None
        browser.look(width, scheme)
        log_in(browser, fleet)
        for path in ("/", "/devices/gate", "/rollouts", f"/rollouts/{started(fleet)}", "/login"):
            browser.open(f"{fleet.url}{path}")
            browser.devtools("Runtime.evaluate", expression=Path(AXE).read_text())
            found: Any = browser.run(
                "return axe.run(document).then(({violations, passes}) => [violations, passes.length])"
            )
            assert found[0] == [], (path, found[0])
            assert found[1] > 10


@pytest.mark.slow
@pytest.mark.skipif(None in (CHROMIUM, DRIVER), reason="chromium and chromium-driver are not installed")
def test_a_rollout_is_paused_and_halted_by_keyboard_alone(browser: Browser, fleet: Service) -> None:
    browser.look(360)
    log_in(browser, fleet)
    rollout = started(fleet)
    browser.open(f"{fleet.url}/rollouts/{rollout}")
    press_button(browser, "Pause")
    browser.until("document.querySelector('[role=status]').textContent.includes('paused')")
    browser.run("window.confirm = () => true")
    press_button(browser, "Halt and take back")
    browser.until("document.querySelector('[role=status]').textContent.includes('halted')")
    assert "taken back by operator" in fleet.get(f"/rollouts/{rollout}")["halted_by"]
    assert browser.complaints() == []


@pytest.mark.slow
@pytest.mark.skipif(None in (CHROMIUM, DRIVER), reason="chromium and chromium-driver are not installed")
def test_a_page_refreshes_itself_and_a_device_has_a_plot(browser: Browser, fleet: Service) -> None:
    browser.look(1280)
    log_in(browser, fleet)
    until_s = time.monotonic() + 20
    while len(fleet.get("/devices/gate/history")["history"]) < 3 and time.monotonic() < until_s:
        time.sleep(0.1)
    browser.open(f"{fleet.url}/devices/gate")
    browser.until("document.querySelector('#plot canvas') !== null")
    rollout = started(fleet)
    browser.open(f"{fleet.url}/rollouts/{rollout}")
    fleet.do("POST", f"/rollouts/{rollout}/back")
    browser.until("document.querySelector('[role=status]').textContent.includes('halted')")


def press_button(browser: Browser, text: str) -> None:
    for _ in range(30):
        browser.press("Tab")
        if browser.run("return document.activeElement.textContent") == text:
            browser.press("Enter")
            return
    raise AssertionError(f"no way to {text} by keyboard")
