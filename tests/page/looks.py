"""Each screen in the light, in the dark, on a phone and on a large screen: accessibility, no sideways scrolling, pictures."""

import re

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from .harness import check, session, test

SIZES = {"light": (1440, 900, "light"), "dark": (1440, 900, "dark"), "320": (320, 640, "light"), "4k": (3840, 2160, "light")}


def screens(s):
    """(name, route, what to do there) of each screen."""
    share = next(iter(s.objects("share") or s.objects("volume")))
    volume = next(iter(s.objects("volume")), share)
    at = f"/o/{share['id']}"
    own = [("overview", at, None), ("properties", f"{at}/properties", None), ("rules", f"{at}/rules", None), ("snapshots", f"{at}/snapshots", None),
           ("files", f"{at}/files", None), ("exports", f"{at}/exports", None), ("explain", f"{at}/explain", None), ("volume", f"/o/{volume['id']}", None)]
    return [("dashboard", "/", None), *own, ("compression", at, open_choices), ("analytics", "/analytics", None), ("jobs", "/jobs", None), ("health", "/health", None),
            ("users", "/settings", None), ("pool", "/settings/pool", None), ("tokens", "/settings/tokens", None), ("audit", "/settings/audit", None),
            ("about", "/settings/about", None), ("create", "/new", None), ("dialog", f"{at}/snapshots", open_dialog)]


def open_choices(page):
    page.get_by_role("button", name="change compression").click()
    page.get_by_role("radio", name="zstd-3", exact=True).check()
    expect(page.get_by_role("region", name="Compression", exact=True)).to_contain_text(re.compile("estimated from .* ago"))


def open_dialog(page):
    page.get_by_role("button", name="Take a snapshot").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def visit(s, route, act):
    """Goes there by the dashboard, so that nothing is left of the screen before."""
    s.page.goto("about:blank")
    s.go(route)
    expect(s.page.locator("main").get_by_role("heading").first).to_be_attached()
    expect(s.page.locator("main .wait")).to_have_count(0)
    if act:
        act(s.page)


def each_screen(size, judge):
    width, height, scheme = SIZES[size]
    faults = []
    with session(viewport={"width": width, "height": height}, color_scheme=scheme) as s:
        for name, route, act in screens(s):
            visit(s, route, act)
            faults += [f"{name}: {fault}" for fault in judge(s)]
            s.shot(f"{name}-{size}")
    check(not faults, "; ".join(faults))


def axe(s):
    found = Axe().run(s.page).response["violations"]
    return [f"{v['id']} at {', '.join(' '.join(map(str, n['target'])) for n in v['nodes'][:3])}" for v in found]


def sideways(s):
    """What is wider than the window."""
    wide = s.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return [f"{wide} pixels wider than the window"] if wide > 0 else []


@test()
def screens_are_accessible_in_the_light(pool):
    """axe finds nothing in any screen in light colours."""
    each_screen("light", lambda s: axe(s) + sideways(s))


@test()
def screens_are_accessible_in_the_dark(pool):
    """axe finds nothing in any screen in dark colours."""
    each_screen("dark", lambda s: axe(s) + sideways(s))


@test()
def screens_fit_a_phone(pool):
    """At 320 pixels no screen scrolls sideways, and axe finds nothing."""
    each_screen("320", lambda s: axe(s) + sideways(s))


@test()
def screens_fit_a_large_window(pool):
    """At 3840 pixels no screen scrolls sideways."""
    each_screen("4k", sideways)


@test()
def drawer_has_the_tree_on_a_phone(pool):
    """On a phone the tree is in a drawer, which closes when an object is chosen."""
    with session(viewport={"width": 320, "height": 640}) as s:
        one = s.objects()[0]
        menu = s.page.get_by_role("button", name="Objects and pages")
        expect(s.page.get_by_role("treeitem")).to_have_count(0)
        menu.click()
        s.page.locator(f"[data-id='{one['id']}']").click()
        expect(s.page.get_by_role("heading", level=1)).to_contain_text(one["name"].rsplit("/", 1)[-1])
        expect(menu).to_have_attribute("aria-expanded", "false")


@test()
def open_tab_is_in_sight_on_a_phone(pool):
    """The bar of tabs scrolls to the tab that is open."""
    with session(viewport={"width": 320, "height": 640}) as s:
        s.go(f"/o/{s.objects('volume')[0]['id']}/explain")
        expect(s.page.get_by_role("link", name="Explain")).to_be_in_viewport(ratio=0.95)  # positions have fractions of pixels


@test()
def nothing_moves_for_those_who_ask_for_that(pool):
    """With reduced motion no transition is left."""
    with session(reduced_motion="reduce", viewport={"width": 700, "height": 700}) as s:
        check(s.page.evaluate("getComputedStyle(document.getElementById('side')).transitionDuration") in ("0s", ""), "the drawer slides")
