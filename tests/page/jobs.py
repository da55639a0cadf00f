"""Jobs to their end, paused, cancelled; scrub from the dashboard and from health."""

import re
import time

from playwright.sync_api import expect

from .harness import check, session, test


@test(mock_only=True)
def job_is_paused_resumed_and_cancelled(pool):
    """A job stands still when it is paused, goes on, and ends when it is cancelled; a notice says so."""
    with session() as s:
        s.go("/jobs")
        job = s.page.locator(".job").first
        job.get_by_role("button", name="Pause").click()
        expect(job).to_contain_text("paused")
        check(s.api("/jobs")[0]["state"] == "paused", "the server does not know")
        job.get_by_role("button", name="Resume").click()
        expect(job).to_contain_text("recompressing")
        job.get_by_role("button", name="Cancel").click()
        expect(s.page.get_by_text("No job is running.")).to_be_visible()
        expect(s.page.get_by_role("row").filter(has_text="recompress projects/home")).to_contain_text("cancelled")
        expect(s.page.get_by_text("recompress projects/home: cancelled")).to_be_visible()


@test(mock_only=True)
def an_open_page_keeps_no_more_jobs_than_the_server(pool):
    """Of many jobs that end while the page is open, it keeps the last 200, as the server does."""
    with session() as s:
        s.go("/jobs")
        expect(s.page.get_by_role("region", name="Active").locator(".job")).to_have_count(1)
        with s.mock.state.pool.lock:
            # The mock reports jobs that ended only while none goes on.
            s.mock.state.pool.jobs[0]["state"] = "paused"
            for _ in range(250):
                s.mock.state.pool.start_job("clean", None).update(state="done", ended_unix_s=int(time.time()))
        expect(s.page.get_by_role("region", name="Finished")).to_contain_text("last 200")


@test()
def scrub_is_started_and_shown(pool):
    """A scrub is started from the dashboard; the side bar counts it and the list of jobs has it."""
    with session() as s:
        s.page.get_by_role("region", name="Health").get_by_role("button", name="Scrub now").click()
        s.go("/jobs")
        expect(s.page.locator("main").get_by_text(re.compile("^scrub$")).first).to_be_visible()


@test(mock_only=True)
def finding_has_words_advice_and_a_button(pool):
    """A finding of health is marked in the frame, says what to do, and its button does it."""
    with session() as s:
        s.steer(findings=[{"kind": "damaged", "words": "DAMAGED in 1 place", "advice": "Restore the damaged data, then acknowledge the damage."}])
        expect(s.page.get_by_role("link", name=re.compile("▲ damaged"))).to_be_visible()
        s.page.get_by_role("link", name=re.compile("▲ damaged")).click()
        expect(s.page.get_by_text("DAMAGED in 1 place")).to_be_visible()
        expect(s.page.get_by_text("Restore the damaged data, then acknowledge the damage.")).to_be_visible()
        s.page.get_by_role("button", name="Acknowledge").click()
        expect(s.page.get_by_text("No problems found.")).to_be_visible()
