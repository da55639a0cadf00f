"""Log-in, the frame, the tree and its search, and the first object of an empty pool."""

import re

from playwright.sync_api import expect

from .harness import SERVED, check, session, test


@test(mock_only=True)
def log_in_link_is_good_once(pool):
    """A log-in link opens the page, is gone from the address, and is refused the second time."""
    with session() as s:
        check("key=" not in s.page.url, f"the key is still in the address: {s.page.url}")
        link = s.link()
        s.page.get_by_role("link", name=re.compile("anna")).click()
        s.page.get_by_role("button", name="Log out").click()
        expect(s.page.get_by_label("User")).to_be_visible()
        s.page.goto(link)
        s.page.reload()
        expect(s.page.get_by_role("link", name="shale", exact=True)).to_be_visible()
        other = s.browser.chromium.new_context()
        page = other.new_page()
        page.goto(link)
        expect(page.get_by_role("alert")).to_contain_text("was used, or is too old")


@test(mock_only=True)
def password_is_asked_and_a_wrong_one_is_refused(pool):
    """A wrong password is refused in words, a right one opens the page, and the sixth wrong one has to wait."""
    with session() as s:
        s.api("/session", "DELETE")
        s.page.reload()
        for word, said in [("wrong", "user or password is wrong"), ("correct horse", None)]:
            s.page.get_by_label("User").fill("olaf")
            s.page.get_by_label("Password").fill(word)
            s.page.get_by_role("button", name="Log in").click()
            if said:
                expect(s.page.get_by_role("alert")).to_have_text(said)
        expect(s.page.get_by_role("link", name="olaf · operate")).to_be_visible()
        s.page.get_by_role("link", name="olaf · operate").click()
        s.page.get_by_role("button", name="Log out").click()
        for _ in range(5):
            s.page.get_by_label("User").fill("olaf")
            s.page.get_by_label("Password").fill("wrong")
            s.page.get_by_role("button", name="Log in").click()
            expect(s.page.get_by_label("Password")).to_have_value("")
        expect(s.page.get_by_role("alert")).to_contain_text("too many attempts")


@test()
def tree_has_stored_bytes_and_ratio_of_each_object(pool):
    """The side bar names each object with its ratio, and its rows lead to the object."""
    with session() as s:
        one = s.objects()[0]
        row = s.page.get_by_role("treeitem").filter(has_text=one["name"].rsplit("/", 1)[-1]).first
        expect(row).to_contain_text(f"{one['allocated_bytes'] / one['stored_bytes']:.2f}x")
        row.click()
        expect(s.page).to_have_url(re.compile(r"#/o/\d+$"))
        expect(s.page.get_by_role("heading", level=1)).to_contain_text(one["name"].rsplit("/", 1)[-1])


@test()
def search_finds_an_object_by_keys_alone(pool):
    """`/` goes to the search, which filters the tree; Enter opens the first match; the arrows walk the tree."""
    with session() as s:
        one = s.objects()[0]
        expect(s.page.get_by_role("treeitem").first).to_be_visible()
        s.page.keyboard.press("/")
        s.page.keyboard.type(one["name"])
        expect(s.page.get_by_role("treeitem")).to_have_count(sum(one["name"].lower() in other["name"].lower() for other in s.objects()))
        s.page.keyboard.press("Enter")
        expect(s.page.get_by_role("heading", level=1)).to_contain_text(one["name"].rsplit("/", 1)[-1])
        s.page.keyboard.press("ArrowDown")
        expect(s.page.get_by_role("treeitem").first).to_be_focused()
        s.page.get_by_role("searchbox", name="Search objects").focus()
        s.page.keyboard.press("Escape")
        s.page.keyboard.press("?")
        expect(s.page.get_by_role("dialog", name="Keys")).to_be_visible()
        s.page.keyboard.press("Escape")
        s.page.keyboard.press("g")
        s.page.keyboard.press("j")
        expect(s.page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()


@test()
def dashboard_has_capacity_load_and_health(pool):
    """The dashboard says how full the pool is, what is written, and each figure leads to its graph."""
    with session() as s:
        capacity = s.page.get_by_role("region", name="Capacity")
        expect(capacity).to_contain_text(re.compile(r"saves \d+ %"))
        used = capacity.get_by_role("img", name=re.compile(" used$")).get_attribute("aria-label").removesuffix(" used")
        expect(capacity.locator("dt", has_text="used").locator("xpath=..")).to_contain_text(used)
        if not SERVED:
            expect(capacity).to_contain_text(re.compile(r"full in about \d+ days"))
        now = s.page.get_by_role("region", name="Now")
        expect(now).to_contain_text(re.compile(r"\d [kM]?B/s"))
        now.get_by_role("link", name=re.compile("written by clients")).click()
        expect(s.page.get_by_role("region", name="bytes that clients read, wrote and discarded")).to_be_visible()


@test(empty=True)
def empty_pool_leads_to_a_share_in_three_clicks(pool):
    """An empty pool says so with the command, and a share is there after three clicks and a name."""
    with session(pool) as s:
        expect(s.page.get_by_text("The pool is empty")).to_be_visible()
        expect(s.page.locator("main code").first).to_contain_text("shale create /srv/pool")
        s.page.get_by_role("link", name="Create a share").click()
        s.page.get_by_label("Name").fill("home")
        expect(s.page.locator("form code")).to_have_text("shale create /srv/pool home --share")
        s.page.get_by_role("button", name="Create the share").click()
        expect(s.page.get_by_role("heading", level=1)).to_contain_text("home")
        expect(s.page.get_by_role("treeitem")).to_have_count(1)
        s.page.get_by_role("button", name="change compression").click()
        expect(s.page.get_by_text("no data to estimate from yet")).to_be_visible()


@test()
def volume_is_created_renamed_and_destroyed(pool):
    """A volume is created, a bad size is refused, its name changed; destroying it asks for the name."""
    with session() as s:
        s.go("/new?kind=volume")
        s.page.get_by_label("Name").fill("page-test")
        s.page.get_by_label("Size", exact=True).fill("ten")
        s.page.get_by_role("button", name="Create the volume").click()
        expect(s.page.get_by_role("alert")).to_contain_text("invalid size 'ten'")
        s.page.get_by_label("Size", exact=True).fill("64M")
        s.page.get_by_role("button", name="Create the volume").click()
        expect(s.page.get_by_role("heading", level=1)).to_contain_text("page-test")
        s.page.get_by_role("link", name="Properties").click()
        s.page.get_by_role("button", name="Rename").click()
        s.page.get_by_role("textbox", name="Name, with its folder").fill("page-test-2")
        s.page.get_by_role("dialog").get_by_role("button", name="Rename").click()
        expect(s.page.get_by_role("heading", level=1)).to_contain_text("page-test-2")
        s.page.get_by_role("button", name="Destroy this volume").click()
        dialog = s.page.get_by_role("dialog")
        expect(dialog.get_by_role("button", name="Destroy")).to_be_disabled()
        dialog.get_by_role("textbox").fill("page-test-2")
        dialog.get_by_role("button", name="Destroy").click()
        expect(s.page.get_by_role("region", name="Capacity")).to_be_visible()
        check(s.named("page-test-2") is None, "the volume is still there")
