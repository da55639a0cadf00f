"""What the tests of the page share: the server, the browser, a page that is logged in, and the checks after each test.

Without SHALE_PAGE the pool is the one of tests/page/mock. With it, it is a log-in link of `shale serve --http`, and the tests
that steer the mock are left out, with their names; SHALE_PAGE_SHARES is where its shares are mounted, for those that write. Owns the processes that it starts.
"""

import json
import os
import re
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

from .mock.server import Server

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "target" / "screenshots"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
# A log-in link of a served pool: http://127.0.0.1:8080/#key=...
SERVED = os.environ.get("SHALE_PAGE")
SHARES = Path(os.environ["SHALE_PAGE_SHARES"]) if SERVED and os.environ.get("SHALE_PAGE_SHARES") else None
# The page as it is built, for a program that has another one in it: crates/fe-http/assets.
ASSETS = Path(os.environ["SHALE_PAGE_ASSETS"]) if os.environ.get("SHALE_PAGE_ASSETS") else None
WAIT_MS = 15_000
expect.set_options(timeout=WAIT_MS)
TESTS = []


class Failed(Exception):
    """A check that did not hold."""


def check(holds, what):
    if not holds:
        raise Failed(what)


def test(mock_only=False, writes=False, **pool):
    """Registers a test, which may need the mock or a share to write to; `pool` are the arguments of the mock's pool. The name and the
    first line of its words are shown."""
    def add(function):
        lacks = bool(SERVED) if mock_only or pool else writes and SHARES is None
        TESTS.append((function.__name__, function, lacks, pool))
        return function
    return add


def built(route):
    """Answers with a file of ASSETS."""
    path = route.request.url.split("://", 1)[1].partition("/")[2].partition("?")[0]
    route.fulfill(path=ASSETS / (path or "index.html"))


class Browser:
    """Chromium with one profile: its tabs share a session, as those of a user do."""

    def __init__(self, playwright, address, **context):
        # As root, Chromium has no sandbox of its own.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self.chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*sandbox, "--disable-gpu"])
        self.context, self.address, self.faults = self.chromium.new_context(**{"viewport": {"width": 1440, "height": 900}, **context}), address, []
        self.context.set_default_timeout(WAIT_MS)
        if ASSETS:
            self.context.route(re.compile(r"^http://[^/]+/(?!api/)"), built)

    def tab(self):
        """An empty tab; what goes wrong in it fails the test."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.faults.append(f"error in the page: {error}"))
        page.on("console", lambda line: self.faults.append(f"console: {line.text}") if line.type == "error" and "status of" not in line.text and "ERR_" not in line.text else None)
        return page

    def close(self):
        self.chromium.close()


class Session:
    """A server, a browser, and a page in it that is logged in."""

    def __init__(self, playwright, pool=None, **context):
        self.mock = None if SERVED else Server(**(pool or {})).start()
        self.address = re.sub(r"#.*", "", SERVED or self.mock.address).rstrip("/")
        self.browser = Browser(playwright, self.address, **context)
        if SERVED and SESSION_FILE.exists():
            self.browser.context.add_cookies(json.loads(SESSION_FILE.read_text()))
        self.page = self.browser.tab()
        self.log_in()

    def link(self):
        return SERVED or f"{self.address}/#key={self.steer()['key']}"

    def log_in(self):
        self.page.goto(self.address + "/" if SERVED and SESSION_FILE.exists() else self.link())
        expect(self.page.get_by_role("link", name="shale", exact=True)).to_be_visible()
        if SERVED and not SESSION_FILE.exists():
            # The link is good once; the tests after this one go on with its session.
            SESSION_FILE.parent.mkdir(parents=True, exist_ok=True)
            SESSION_FILE.write_text(json.dumps(self.browser.context.cookies()))

    def steer(self, **wish):
        """Changes how the mock behaves; what it knows."""
        request = urllib.request.Request(f"{self.address}/mock", json.dumps(wish).encode())
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())

    def api(self, path, method="GET", **body):
        """Asks the interface with the page's session."""
        answer = self.browser.context.request.fetch(f"{self.address}/api/v1{path}", method=method, headers={"Origin": self.address}, **({"data": body} if body else {}))
        check(answer.ok, f"{method} {path}: {answer.status} {answer.text()[:200]}")
        return answer.json() if answer.body() else None

    def objects(self, kind=None):
        """The objects that hold data, those of this kind, the largest first."""
        found = self.api(f"/objects?limit=1000{f'&kind={kind}' if kind else ''}")["objects"]
        return sorted(found, key=lambda one: -one["stored_bytes"])

    def named(self, name):
        """The object of this name; none: there is none."""
        return next((one for one in self.objects() if one["name"] == name), None)

    def of(self, one, rest):
        """What the interface says of an object."""
        return self.api(f"/objects/{one['id']}/{rest}")

    def patch(self, one, changes):
        """Sets properties of an object, as another client does."""
        path = f"{self.address}/api/v1/objects/{one['id']}/properties"
        headers = {"Origin": self.address, "Content-Type": "application/merge-patch+json"}
        etag = self.browser.context.request.get(path).headers.get("etag")
        answer = self.browser.context.request.patch(path, data=changes, headers={**headers, **({"If-Match": etag} if etag else {})})
        check(answer.ok, answer.text())

    def go(self, route):
        self.page.goto(f"{self.address}/#{route}")

    def shot(self, name):
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(SHOTS / f"{name}.png"))

    def end(self):
        """Closes all; returns what went wrong unseen."""
        faults = list(self.browser.faults)
        if self.mock:
            faults += [f"policy broken: {report[:300]}" for report in self.mock.state.csp_reports]
        self.browser.close()
        if self.mock:
            self.mock.shutdown()
            self.mock.server_close()
        return faults


SESSION_FILE = ROOT / "target" / "page" / "session.json"


@contextmanager
def session(pool=None, **context):
    """A session of its own playwright; what went wrong unseen fails it."""
    with sync_playwright() as playwright:
        one = Session(playwright, pool, **context)
        try:
            yield one
        except BaseException:
            SHOTS.mkdir(parents=True, exist_ok=True)
            one.page.screenshot(path=str(SHOTS / "failed.png"))
            one.browser.close()
            raise
        faults = one.end()
        check(not faults, "; ".join(faults))
