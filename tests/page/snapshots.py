"""Snapshots and files: take, browse, compare, download, restore, clone, hold, roll back."""

import re
from pathlib import Path

from playwright.sync_api import expect

from .harness import SERVED, check, session, test


@test()
def snapshot_is_taken_held_and_destroyed(pool):
    """A snapshot is taken under a name, held, kept from being destroyed while it is held, and destroyed."""
    with session() as s:
        one = next(iter(s.objects("share") or s.objects("volume")))
        s.go(f"/o/{one['id']}/snapshots")
        s.page.get_by_role("button", name="Take a snapshot").click()
        s.page.get_by_role("textbox", name="Name").fill("page-1")
        s.page.get_by_role("button", name="Take it").click()
        row = s.page.get_by_role("row", name=re.compile("page-1"))
        expect(row).to_contain_text(re.compile("just now|ago"))
        row.click()
        s.page.get_by_role("button", name="Hold").click()
        s.page.get_by_role("dialog").get_by_role("textbox").fill("audit")
        s.page.get_by_role("dialog").get_by_role("button", name="Hold").click()
        expect(row).to_contain_text("held")
        s.page.get_by_role("button", name="Destroy").click()
        s.page.get_by_role("dialog").get_by_role("button", name="Destroy").click()
        expect(s.page.get_by_role("alert")).to_contain_text("held")
        s.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        s.page.get_by_role("button", name="Release audit").click()
        expect(row).not_to_contain_text("held")
        s.page.get_by_role("button", name="Destroy").click()
        s.page.get_by_role("dialog").get_by_role("button", name="Destroy").click()
        expect(row).to_have_count(0)


@test(mock_only=True)
def file_is_compared_downloaded_and_restored(pool):
    """A snapshot is browsed and compared with now; a file of it is downloaded whole and restored by a job."""
    with session() as s:
        one = s.objects("share")[0]
        s.go(f"/o/{one['id']}/snapshots")
        s.page.get_by_role("row", name=re.compile("monday-0020")).click()
        s.page.get_by_role("link", name="Compare with now").click()
        expect(s.page.get_by_role("row", name=re.compile("new.txt"))).to_contain_text("new")
        s.page.get_by_role("row", name=re.compile("^src")).click()
        expect(s.page.get_by_role("row", name=re.compile("store.c"))).to_contain_text("changed")
        expect(s.page.get_by_role("row", name=re.compile("main.c"))).to_contain_text("same")
        s.page.get_by_role("row", name=re.compile("store.c")).click()
        with s.page.expect_download() as download:
            s.page.get_by_role("link", name="Download").click()
        check(open(download.value.path(), "rb").read() == s.mock.state.pool.content("src/store.c", "monday-0020"), "other bytes were downloaded")
        s.page.get_by_role("button", name="Restore").click()
        s.page.get_by_role("dialog").get_by_role("button", name="Restore").click()
        expect(s.page.get_by_text(re.compile("restore projects/home/src/store.c: done"))).to_be_visible()
        check(s.steer()["restored"] == ["src/store.c"], "nothing was restored")


@test()
def file_of_a_snapshot_comes_back_under_another_name(pool):
    """A file of a new snapshot is downloaded, and restored beside the one of now, which is listed next."""
    with session() as s:
        one = s.objects("share")[0]
        s.api(f"/objects/{one['id']}/snapshots", "POST", name="page-files")
        file = next(entry["name"] for entry in s.of(one, "files/?at=page-files")["entries"] if entry["kind"] == "file")
        s.go(f"/o/{one['id']}/files?at=page-files")
        s.page.get_by_role("row", name=re.compile(f"^{re.escape(file)}")).click()
        with s.page.expect_download() as download:
            s.page.get_by_role("link", name="Download").click()
        check(Path(download.value.path()).stat().st_size > 0, "nothing was downloaded")
        s.page.get_by_role("button", name="Restore").click()
        s.page.get_by_role("dialog").get_by_role("textbox").fill(f"{file}.restored")
        s.page.get_by_role("dialog").get_by_role("button", name="Restore").click()
        expect(s.page.get_by_text(re.compile(r"restore .*: done"))).to_be_visible()
        if SERVED:
            s.go(f"/o/{one['id']}/files")
            expect(s.page.get_by_role("row", name=re.compile(f"^{re.escape(file)}\\.restored"))).to_be_visible()
        s.api(f"/objects/{next(x['id'] for x in s.of(one, 'snapshots') if x['name'] == 'page-files')}", "DELETE")


@test(mock_only=True)
def newer_file_is_not_replaced_unasked(pool):
    """A restore over a newer file is refused in words, and goes on when it is asked for."""
    with session() as s:
        one = s.objects("share")[0]
        s.go(f"/o/{one['id']}/files?at=monday-0020")
        s.page.get_by_role("row", name=re.compile("README.md")).click()
        s.page.get_by_role("button", name="Restore").click()
        s.page.get_by_role("dialog").get_by_role("button", name="Restore").click()
        expect(s.page.get_by_role("alert")).to_contain_text("newer")
        s.page.get_by_role("checkbox", name="overwrite existing files").check()
        s.page.get_by_role("dialog").get_by_role("button", name="Restore").click()
        expect(s.page.get_by_role("dialog")).to_have_count(0)


@test(mock_only=True)
def rollback_tells_what_is_lost_and_asks_for_the_name(pool):
    """Rolling back lists newer snapshots and clients, and needs the name."""
    with session() as s:
        one = next(o for o in s.objects("volume") if o["client_names"])
        s.go(f"/o/{one['id']}/snapshots")
        s.page.get_by_role("row", name=re.compile("monday-0015")).click()
        s.page.get_by_role("button", name="Roll back").click()
        dialog = s.page.get_by_role("dialog")
        expect(dialog).to_contain_text("8 newer snapshots are destroyed")
        expect(dialog).to_contain_text("nbd 10.0.0.7:51123")
        expect(dialog.get_by_role("button", name="Roll back")).to_be_disabled()
        dialog.get_by_role("textbox").fill(one["name"])
        dialog.get_by_role("button", name="Roll back").click()
        expect(s.page.get_by_text("16; ")).to_be_visible()


@test(mock_only=True)
def snapshot_is_cloned_and_its_volume_compared(pool):
    """A volume is compared with a snapshot by ranges; a clone is opened, names its origin, and is made independent."""
    with session() as s:
        one = s.objects("volume")[0]
        s.go(f"/o/{one['id']}/snapshots")
        s.page.get_by_role("row", name=re.compile("hourly-0023")).click()
        s.page.get_by_role("button", name="Compare with now").click()
        expect(s.page.get_by_role("table", name="Changed ranges")).to_contain_text("128 KiB")
        s.page.get_by_role("button", name="Clone").click()
        s.page.get_by_role("dialog").get_by_role("textbox").fill("vms/copy")
        s.page.get_by_role("dialog").get_by_role("button", name="Clone").click()
        expect(s.page.get_by_text(f"cloned from {one['name']}@hourly-0023")).to_be_visible()
        s.page.get_by_role("link", name="Properties").click()
        s.page.get_by_role("button", name="Make independent of its origin").click()
        expect(s.page.get_by_text("cloned from")).to_have_count(0)


@test(mock_only=True)
def schedule_is_set_and_names_its_source(pool):
    """The schedule of a volume comes from its folder, and is set on it."""
    with session() as s:
        one = s.named("vms/web")
        s.go(f"/o/{one['id']}/snapshots")
        expect(s.page.get_by_text("from vms")).to_be_visible()
        s.page.get_by_label("Frequency").select_option("hourly")
        expect(s.page.get_by_text("set here")).to_be_visible()


@test(mock_only=True)
def folder_is_snapshotted_at_one_moment(pool):
    """A folder's contents get snapshots of one name together."""
    with session() as s:
        folder = s.named("vms")
        s.go(f"/o/{folder['id']}")
        s.page.get_by_role("button", name="Snapshot everything").click()
        s.page.get_by_role("textbox", name="Name").fill("together")
        s.page.get_by_role("button", name="Take snapshots").click()
        expect(s.page.get_by_text("of everything in vms taken")).to_be_visible()
        for name in ("vms/web", "vms/build", "vms/windows"):
            check(any(x["name"] == "together" for x in s.of(s.named(name), "snapshots")), name)
