"""A server that is away, comes back, is another one, fails or is slow; names that would be markup."""

import re

from playwright.sync_api import expect

from .harness import check, session, test


@test(mock_only=True)
def lost_server_is_reported_and_found_again(pool):
    """Without an answer a banner says so, figures are marked as old, and all is well again without a reload."""
    with session() as s:
        expect(s.page.get_by_role("region", name="Now")).to_contain_text("B/s")
        s.steer(silent=True)
        expect(s.page.get_by_text(re.compile("The server is not responding. Figures are from"))).to_be_visible()
        check(s.page.locator("main.stale").count() == 1, "the figures are not marked")
        s.steer(silent=False)
        expect(s.page.get_by_text("The server is not responding")).to_have_count(0)
        check(s.page.locator("main.stale").count() == 0, "the figures are still marked")


@test(mock_only=True)
def restarted_server_is_read_again(pool):
    """Another start of the server is noticed by its figures, and everything is read again."""
    with session() as s:
        expect(s.page.get_by_role("region", name="Now")).to_contain_text("B/s")
        s.mock.state.pool.add("made-while-away", "volume", 0, 0, {})
        s.steer(boot="77aa")
        expect(s.page.get_by_text("The server restarted")).to_be_visible()
        expect(s.page.get_by_role("treeitem", name=re.compile("made-while-away"))).to_be_visible()


@test(mock_only=True)
def gap_in_the_figures_is_read_over(pool):
    """After a minute without figures, as when the page was hidden, all lists are read again: their changes were not reported."""
    with session() as s:
        expect(s.page.get_by_role("region", name="Now")).to_contain_text("B/s")
        s.mock.state.pool.add("made-meanwhile", "volume", 0, 0, {})
        s.steer(ahead_s=60)
        expect(s.page.get_by_role("treeitem", name=re.compile("made-meanwhile"))).to_be_visible()


@test(mock_only=True)
def ended_session_leads_to_the_log_in(pool):
    """A session that ends while the page is open leads to the log-in, without a figure left on the screen."""
    with session() as s:
        expect(s.page.get_by_role("treeitem").first).to_be_visible()
        s.mock.state.sessions.clear()
        expect(s.page.get_by_label("Password")).to_be_visible()
        expect(s.page.get_by_role("treeitem")).to_have_count(0)


@test(mock_only=True)
def failed_view_has_the_words_and_a_way_on(pool):
    """A view whose answer failed shows the server's words and tries again by a button; the others go on."""
    with session() as s:
        one = s.objects("share")[0]
        s.steer(refuse="/snapshots")
        s.go(f"/o/{one['id']}/snapshots")
        expect(s.page.get_by_role("alert").filter(has_text="map store cannot be read")).to_be_visible()
        expect(s.page.get_by_label("Frequency")).to_be_visible()
        s.steer(refuse="")
        s.page.get_by_role("button", name="Try again").click()
        expect(s.page.get_by_role("row", name=re.compile("monday-0020"))).to_be_visible()


@test(mock_only=True)
def slow_answer_is_waited_for_in_sight(pool):
    """A slow answer shows that it is waited for; an answer at once does not."""
    with session() as s:
        one = s.objects("share")[0]
        s.page.evaluate("""() => { window.waits = 0; new MutationObserver(() => { for (const e of document.querySelectorAll('main .wait'))
            if (getComputedStyle(e).visibility === 'visible') window.waits += 1 }).observe(document.body, { childList: true, subtree: true, attributes: true }) }""")
        s.go(f"/o/{one['id']}/rules")
        expect(s.page.get_by_label("sqlite, energy")).to_be_visible()
        check(s.page.evaluate("window.waits") == 0, "a fast answer flickered")
        s.steer(delay_ms=1500)
        s.go(f"/o/{one['id']}/exports")
        expect(s.page.get_by_text("Loading").first).to_be_visible()
        s.steer(delay_ms=0)
        expect(s.page.get_by_role("row", name=re.compile("^NFS"))).to_be_visible()


@test(mock_only=True)
def names_that_are_markup_stay_text(pool):
    """A volume, a file and an error whose text is markup are shown as they are in every view."""
    with session() as s:
        hostile = next(o for o in s.objects() if "onerror" in o["name"])
        share = s.objects("share")[0]
        expect(s.page.get_by_role("treeitem", name=re.compile("onerror"))).to_be_visible()
        for tab in ("", "/properties", "/rules", "/snapshots", "/explain"):
            s.go(f"/o/{hostile['id']}{tab}")
            expect(s.page.get_by_role("heading", level=1)).to_contain_text("onerror=")
        s.go(f"/o/{share['id']}/files")
        expect(s.page.get_by_role("row", name=re.compile("onerror"))).to_be_visible()
        s.go("/analytics?dataset=codec.stored&by=object")
        expect(s.page.get_by_role("button", name=re.compile("onerror")).first).to_be_visible()
        s.mock.state.pool.start_job("clean", hostile["name"], seconds=1)
        s.go("/jobs")
        expect(s.page.get_by_role("row", name=re.compile("onerror"))).to_be_visible()
        s.go("/new")
        s.page.get_by_label("Name").fill("/<script>window.hacked=1</script>")
        s.page.get_by_role("button", name="Create the share").click()
        expect(s.page.get_by_role("alert")).to_contain_text("<script>")
        check(s.page.evaluate("window.hacked") is None, "a name was run")
