"""Walks an open page through all its screens as a user does, without loading it again, and samples what the browser holds.

Owns nothing: the page and its browser are the caller's.
"""

import re
from contextlib import suppress

from playwright.sync_api import Error, expect

ESTIMATED = re.compile(r"estimated from .*(ago|just now|in progress)")
SHOTS_MAX = 20


class Walk:
    """A page that is logged in, on a pool with a share and a volume. `user` and `password` log in again once the session has ended."""

    def __init__(self, tab, share, volume, folder, user, password, steers=True, shots=None):
        self.tab, self.share, self.volume, self.folder, self.user, self.password = tab, share, volume, folder, user, password
        # Whether it may start jobs and change codecs.
        self.steers = steers
        # The directory for a picture of each screen that failed.
        self.shots, self.shot = shots, 0
        self.rounds = 0
        self.devtools = tab.context.new_cdp_session(tab)
        # A page that was loaded again has begun with an empty heap.
        tab.evaluate("window.soaked = true")

    def screens(self):
        """(name, what is done there) in the order of a round."""
        return [("dashboard", self.dashboard), ("folder", self.contents), ("compression", self.compression), ("properties", self.properties), ("rules", self.rules),
                ("snapshots", self.snapshots), ("files", self.files), ("exports", self.exports), ("explain", self.explain), ("volume", self.disk), ("analytics", self.analytics),
                ("jobs", self.jobs), ("health", self.health), ("settings", self.settings), ("create", self.create), ("keys", self.keys), ("sizes", self.sizes), ("session", self.session)]

    def go(self, route):
        """Goes there within the document: `goto` could load it again."""
        if self.tab.get_by_label("Password").is_visible():
            self.log_in()
        self.tab.evaluate("route => { location.hash = route }", route)

    def card(self, name):
        return self.tab.get_by_role("region", name=name, exact=True)

    def dashboard(self):
        """The dashboard with live figures."""
        self.go("/")
        expect(self.card("Now")).to_contain_text("B/s")

    def contents(self):
        """A folder with its objects."""
        self.go(f"/o/{self.folder}")
        expect(self.tab.get_by_role("table", name="Contents")).to_be_visible()

    def compression(self):
        """The drop-down with its estimate; another codec and its undoing each third round."""
        self.go(f"/o/{self.share}")
        self.tab.get_by_role("button", name="change compression").click()
        expect(self.card("Compression")).to_contain_text(ESTIMATED, timeout=60_000)
        self.tab.get_by_role("button", name=re.compile(r"all \d+ choices")).click()
        self.tab.get_by_role("button", name="fewer choices").click()
        if self.steers and self.rounds % 3 == 0:
            choice = self.tab.get_by_role("radio", name="zstd-3" if self.rounds % 2 else "lz4", exact=True)
            choice.check()
            apply = self.tab.get_by_role("button", name="Apply")
            if apply.is_enabled():
                apply.click()
                # The load may have changed the property meanwhile: then the page has read it again, and says so.
                outcome = self.card("Compression").get_by_role("button", name="Undo").or_(self.card("Compression").get_by_role("alert")).first
                expect(outcome).to_be_visible()
                if outcome.text_content() == "Undo":
                    outcome.click()
        cancel = self.tab.locator("#choices").get_by_role("button", name="Cancel")
        if cancel.is_visible():
            cancel.click()
        self.tab.get_by_role("button", name="10 min", exact=True).click()
        expect(self.tab.get_by_role("figure").first).to_be_visible()

    def properties(self):
        """The table of properties; one is edited, and left as it is."""
        self.go(f"/o/{self.share}/properties")
        self.tab.get_by_role("button", name="Change mode").click()
        self.tab.get_by_role("button", name="Cancel").click()

    def rules(self):
        """The rules by type, with the bytes of each."""
        self.go(f"/o/{self.share}/rules")
        expect(self.tab.get_by_role("button", name="Add a rule")).to_be_visible()

    def snapshots(self):
        """The list of snapshots, one of them chosen, and the dialog of a new one."""
        self.go(f"/o/{self.share}/snapshots")
        row = self.tab.get_by_role("table", name="Snapshots").locator("[data-index='0']")
        expect(row).to_be_visible()
        row.click()
        expect(self.tab.get_by_role("link", name="Browse")).to_be_visible()
        self.tab.get_by_role("button", name="Take a snapshot").click()
        self.tab.get_by_role("dialog").get_by_role("button", name="Cancel").click()

    def files(self):
        """A directory of the share now, and the same in a snapshot."""
        self.go(f"/o/{self.share}/files")
        listed = self.tab.get_by_role("table", name="Files")
        expect(listed).to_be_visible()
        listed.locator("[data-index='0']").click()
        expect(self.tab.locator("main footer").first).to_be_visible()
        chosen = self.tab.get_by_label("As of")
        if chosen.locator("option").count() > 1:
            chosen.select_option(index=1)
            expect(self.tab.locator("main .wait")).to_have_count(0)

    def exports(self):
        """Protocols and addresses."""
        self.go(f"/o/{self.share}/exports")
        expect(self.tab.get_by_role("row", name=re.compile("^NFS"))).to_be_visible()

    def explain(self):
        """The map, a place of it with its reason, and a directory of the tree map."""
        self.go(f"/o/{self.share}/explain")
        self.why()
        tile = self.tab.locator(".tiles button").first
        if tile.count():
            tile.click()
            expect(self.tab.locator("main .wait")).to_have_count(0)

    def why(self):
        """A place of the map, by keys."""
        cells = self.tab.get_by_role("slider", name=re.compile("Map of the object"))
        cells.focus()
        for _ in range(40):
            if "mostly" in cells.get_attribute("aria-valuetext"):
                break
            self.tab.keyboard.press("ArrowRight")
        self.tab.keyboard.press("Enter")
        expect(self.tab.get_by_role("heading", name="Why")).to_be_visible()
        expect(self.tab.locator("main .wait")).to_have_count(0)

    def disk(self):
        """The volume: its graphs, its map, and what changed since a snapshot."""
        self.go(f"/o/{self.volume}")
        expect(self.tab.get_by_role("figure").first).to_be_visible()
        self.go(f"/o/{self.volume}/explain")
        self.why()
        self.go(f"/o/{self.volume}/snapshots")
        row = self.tab.get_by_role("table", name="Snapshots").locator("[data-index='0']")
        expect(row).to_be_visible()
        row.click()
        self.tab.get_by_role("button", name="Compare with now").click()
        expect(self.tab.locator("main .wait")).to_have_count(0)

    def analytics(self):
        """Spans, comparison, a narrowed graph, the cursor over a plot, the heat map, pause."""
        self.go("/analytics")
        self.tab.get_by_role("button", name="1 h", exact=True).click()
        compare = self.tab.get_by_role("checkbox", name="compare with the previous span")
        compare.check()
        expect(self.tab.locator(".u-over").first).to_be_visible()
        compare.uncheck()
        self.tab.get_by_role("button", name="1 min", exact=True).click()
        box = self.tab.locator(".u-over").first.bounding_box()
        if box:
            self.tab.mouse.move(box["x"] + box["width"] / 3, box["y"] + 40)
            self.tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50, steps=4)
        key = self.tab.locator("main button.key").first
        if key.count():
            key.click()
            self.tab.locator("main button.chip").first.click()
        self.tab.get_by_label("Add a graph").select_option(index=1)
        self.tab.get_by_role("button", name=re.compile("^Remove ")).last.click()
        self.tab.get_by_role("button", name="Pause").click()
        self.tab.get_by_role("button", name="Resume").click()
        self.go("/analytics?dataset=latency&form=heat")
        heat = self.tab.get_by_role("slider", name=re.compile("choose a moment"))
        expect(heat).to_be_visible()
        heat.focus()
        self.tab.keyboard.press("ArrowLeft")

    def jobs(self):
        """The list of jobs; one is started."""
        self.go("/jobs")
        expect(self.card("Active")).to_be_visible()
        if self.steers and self.rounds % 4 == 0:
            self.tab.get_by_role("button", name="Start clean").click()

    def health(self):
        """Findings and the pool's figures."""
        self.go("/health")
        expect(self.tab.get_by_role("heading", name="The pool")).to_be_visible()

    def settings(self):
        """Each tab of the settings."""
        for tab in ("", "/pool", "/tokens", "/audit", "/about"):
            self.go(f"/settings{tab}")
            expect(self.tab.locator("main .card").first).to_be_visible()
            expect(self.tab.locator("main .wait")).to_have_count(0)

    def create(self):
        """The form of a new volume, left as it is."""
        self.go("/new?kind=volume")
        self.tab.get_by_label("Name").fill("never-made")

    def keys(self):
        """The list of keys, and the search."""
        self.go("/")
        expect(self.card("Now")).to_be_visible()
        self.tab.locator("body").press("?")
        expect(self.tab.get_by_role("dialog", name="Keys")).to_be_visible()
        self.tab.keyboard.press("Escape")
        search = self.tab.get_by_role("searchbox", name="Search objects")
        search.fill("h")
        expect(self.tab.get_by_role("treeitem").first).to_be_visible()
        search.fill("")

    def sizes(self):
        """A narrow window in dark colours, and back."""
        before = self.tab.viewport_size
        self.tab.set_viewport_size({"width": 320, "height": 640})
        self.tab.emulate_media(color_scheme="dark")
        expect(self.card("Now")).to_be_visible()
        self.tab.set_viewport_size(before)
        self.tab.emulate_media(color_scheme="light")

    def session(self):
        """Each eighth round the user logs out, and in again."""
        if self.rounds % 8 == 7:
            self.go("/settings")
            self.tab.get_by_role("button", name="Log out").click()
            self.log_in()

    def log_in(self):
        """By user and password: the link was good once."""
        self.tab.get_by_label("User").fill(self.user)
        self.tab.get_by_label("Password").fill(self.password)
        self.tab.get_by_role("button", name="Log in").click()
        expect(self.tab.get_by_role("link", name="shale", exact=True)).to_be_visible()

    def round(self):
        """All screens once; returns [(screen, its fault)]."""
        faults = []
        for name, visit in self.screens():
            try:
                visit()
            except Exception as error:
                faults.append((name, str(error).strip().splitlines()[0]))
                self.shot += 1
                if self.shots and self.shot <= SHOTS_MAX:
                    with suppress(Error):
                        self.tab.screenshot(path=self.shots / f"page-{self.shot}-{name}.png")
                # The next screen begins without a dialog or a list that is open.
                self.tab.keyboard.press("Escape")
        self.rounds += 1
        return faults

    def sample(self):
        """What the browser holds on the dashboard, without garbage."""
        self.dashboard()
        found = {}
        for _ in range(2):
            # What is collected once may have held other things.
            self.devtools.send("HeapProfiler.collectGarbage")
        counters = self.devtools.send("Memory.getDOMCounters")
        found["heap"] = self.devtools.send("Runtime.getHeapUsage")["usedSize"]
        found["DOM nodes"], found["event listeners"], found["documents"] = counters["nodes"], counters["jsEventListeners"], counters["documents"]
        return found

    def was_loaded_again(self):
        return not self.tab.evaluate("!!window.soaked")
