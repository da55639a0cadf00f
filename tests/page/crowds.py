"""Many tabs, many objects, many snapshots; the size of the page."""

import json
import re
import time

from playwright.sync_api import expect

from .harness import ROOT, check, session, test

# Of docs/PAGE.md.
ALL_BYTES_MAX = 300 << 10
FIRST_BYTES_MAX = 120 << 10
NODES_MAX = 3000
SOURCE_LINES_MAX = 6000


def nodes(s):
    return s.page.evaluate("document.getElementsByTagName('*').length")


@test(mock_only=True)
def seven_tabs_share_one_stream(pool):
    """Seven tabs are live with one event stream, and another one takes over when the tab that had it closes."""
    with session() as s:
        tabs = [s.page] + [s.browser.tab() for _ in range(6)]
        for tab in tabs[1:]:
            tab.goto(s.address + "/")
        for tab in tabs:
            expect(tab.get_by_role("region", name="Now")).to_contain_text(re.compile(r"\d+ operations/s|\d+operations|\d [kM]B/s"))
        check(s.steer()["streams"] == 1, f"{s.steer()['streams']} streams")
        s.page.close()
        s.page = tabs[-1]
        job = s.mock.state.pool.jobs[0]
        job["state"] = "paused"
        for tab in tabs[1:]:
            expect(tab.locator(".job").first).to_contain_text("paused")
        # The mock sees that a connection is gone when it writes the next line to it.
        until = time.monotonic() + 10
        while s.steer()["streams"] != 1 and time.monotonic() < until:
            tabs[1].evaluate("new Promise(requestAnimationFrame)")
        check(s.steer()["streams"] == 1, f"{s.steer()['streams']} streams after one tab closed")


@test(many=10000)
def ten_thousand_volumes_are_browsed(pool):
    """10,000 volumes: few nodes in the document, a search by a part of the name, and the end of the list by a key."""
    with session(pool) as s:
        folder = s.page.get_by_role("treeitem", name=re.compile("^many,"))
        expect(folder).to_be_visible()
        check(nodes(s) < NODES_MAX, f"{nodes(s)} nodes")
        # More than a stream has figures of.
        expect(s.page.get_by_role("region", name="Busiest objects").get_by_role("rowheader").first).to_be_visible()
        folder.focus()
        s.page.keyboard.press("ArrowRight")
        expect(s.page.get_by_role("treeitem", name=re.compile("v00000"))).to_be_visible()
        s.page.keyboard.press("End")
        expect(s.page.get_by_role("treeitem").last).to_be_focused()
        check(nodes(s) < NODES_MAX, f"{nodes(s)} nodes")
        s.page.get_by_role("searchbox", name="Search objects").fill("v07777")
        expect(s.page.get_by_role("treeitem")).to_have_count(1)
        s.page.get_by_role("searchbox", name="Search objects").press("Enter")
        expect(s.page.get_by_role("heading", level=1)).to_contain_text("v07777")
        s.page.get_by_role("searchbox", name="Search objects").fill("")
        s.go(f"/o/{s.mock.state.pool.id_of('many')}")
        expect(s.page.get_by_role("table", name="Contents")).to_be_visible()
        check(nodes(s) < NODES_MAX, f"{nodes(s)} nodes with the folder open")
        print(f"      search of 10,000: {filter_ms(s):.0f} ms")


def filter_ms(s):
    """Time from a key to the filtered tree, printed and not judged."""
    began = time.monotonic()
    s.page.get_by_role("searchbox", name="Search objects").fill("v0123")
    expect(s.page.get_by_role("treeitem")).to_have_count(10)
    return 1000 * (time.monotonic() - began)


@test(snapshots=2000)
def two_thousand_snapshots_are_listed(pool):
    """2,000 snapshots: rows in sight only, the oldest by a key, a filter."""
    with session(pool) as s:
        one = s.objects("share")[0]
        s.go(f"/o/{one['id']}/snapshots")
        first = s.page.get_by_role("row", name=re.compile("1999"))
        expect(first).to_be_visible()
        check(nodes(s) < NODES_MAX, f"{nodes(s)} nodes")
        first.focus()
        s.page.keyboard.press("End")
        expect(s.page.get_by_role("row", name=re.compile("monday-0000"))).to_be_focused()
        s.page.get_by_role("searchbox", name="Filter snapshots").fill("monday-1000")
        expect(s.page.locator(".rows [role=row]")).to_have_count(2)


@test(mock_only=True)
def page_is_small(pool):
    """All routes and the first one, compressed, and the lines of source, are within their limits; each file is as listed."""
    assets = ROOT / "crates" / "fe-http" / "assets"
    table = json.loads((assets / "assets.json").read_text())

    def size(entry):
        return (assets / (entry["brotli"] or entry["file"])).stat().st_size

    check({"assets.json", *(e["file"] for e in table), *(e["brotli"] for e in table if e["brotli"])} == {str(p.relative_to(assets)) for p in assets.rglob("*") if p.is_file()},
          "assets.json does not list the files that are there")
    total = sum(map(size, table))
    with session() as s:
        loaded = set()
        s.page.on("response", lambda response: loaded.add(response.url.removeprefix(s.address)))
        s.page.goto(s.address + "/")
        expect(s.page.get_by_role("region", name="Now")).to_contain_text("B/s")
        first = sum(size(entry) for entry in table if entry["path"] in loaded)
    lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "web" / "src").rglob("*") if path.is_file())
    print(f"      {total >> 10} KiB, first route {first >> 10} KiB, {lines} lines")
    check(total <= ALL_BYTES_MAX, f"{total} bytes")
    check(0 < first <= FIRST_BYTES_MAX, f"{first} bytes of the first route")
    check(lines <= SOURCE_LINES_MAX, f"{lines} lines in web/src")


@test(mock_only=True)
def source_has_no_raw_html(pool):
    """No source puts text into the page as markup."""
    for path in (ROOT / "web" / "src").rglob("*"):
        if path.is_file():
            found = re.search(r"\{@html|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", path.read_text())
            check(not found, f"{path.relative_to(ROOT)}: {found[0] if found else ''}")
