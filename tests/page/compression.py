"""The drop-down: what each choice saves and costs, applying it, rewriting, undo; rules and properties beside it."""

import os
import re

from playwright.sync_api import expect

from .harness import SHARES, check, session, test

OPEN = "change compression"


def data_object(s):
    """The share with the most data, or the volume."""
    return next(iter(s.objects("share") or s.objects("volume")))


def in_force(s, one):
    return {p["key"]: p for p in s.of(one, "properties")["properties"]}["compression"]


def another(value):
    return "zstd-3" if value != "zstd-3" else "lz4"


@test()
def compression_is_changed_by_the_drop_down_and_undone(pool):
    """The estimate is read, another choice applied, the property has it, the change is marked and undone."""
    with session() as s:
        one = data_object(s)
        before = in_force(s, one)
        choice = another(before["value"])
        s.go(f"/o/{one['id']}")
        s.page.get_by_role("button", name=OPEN).click()
        row = s.page.get_by_role("row").filter(has=s.page.get_by_role("radio", name=choice, exact=True))
        expect(row).to_contain_text(re.compile(r"\d+\.\d ± \d+\.\d %"))
        expect(row).to_contain_text(re.compile(r"[KMGT]iB"))
        expect(s.page.get_by_role("region", name="Compression", exact=True)).to_contain_text(re.compile("estimated from .* (ago|just now)"))
        s.page.get_by_role("radio", name=choice, exact=True).check()
        expect(s.page.get_by_text(re.compile(rf"→ {choice}: .* (less|more)"))).to_be_visible()
        s.page.get_by_role("button", name="Apply").click()
        expect(s.page.get_by_role("status").filter(has_text=choice)).to_be_visible()
        check(in_force(s, one)["value"] == choice, f"the property is {in_force(s, one)}")
        # The server's mark has the number of the object.
        expect(s.page.get_by_text(re.compile(rf"^┆ set .*compression.* on '{one['name']}'")).last).to_be_visible()
        expect(s.page.get_by_role("button", name="since the change")).to_have_attribute("aria-pressed", "true")
        s.page.get_by_role("button", name="Undo").click()
        expect(s.page.get_by_role("button", name=OPEN)).to_contain_text(before["value"])
        after = in_force(s, one)
        check((after["value"], after["source"]) == (before["value"], before["source"]), f"{before} became {after}")


@test(mock_only=True)
def new_data_is_graphed_with_the_new_codec(pool):
    """After the change the legend of the graph has bytes of the new codec, and the map follows."""
    with session() as s:
        one = data_object(s)
        s.go(f"/o/{one['id']}")
        s.page.get_by_role("button", name=OPEN).click()
        s.page.get_by_role("button", name=re.compile(r"all \d+ choices")).click()
        s.page.get_by_role("radio", name="gzip-7", exact=True).check()
        # A choice that was not in the estimate is estimated when it is chosen.
        row = s.page.get_by_role("row").filter(has=s.page.get_by_role("radio", name="gzip-7", exact=True))
        expect(row).to_contain_text("±")
        s.page.get_by_role("button", name="Apply").click()
        expect(s.page.get_by_role("figure", name="Disk bytes written, by codec")).to_contain_text(re.compile(r"gzip-7\s+[1-9]"))
        s.page.get_by_role("link", name="Explain").click()
        expect(s.page.get_by_text(re.compile(r"gzip-7 \d+ %"))).to_be_visible()


@test(writes=True)
def new_data_is_stored_by_the_choice(pool):
    """On a served share: the estimate is read, another codec applied, a file written, and it is stored by that codec; then undone."""
    with session() as s:
        one = data_object(s)
        before = in_force(s, one)["value"]
        s.go(f"/o/{one['id']}")
        s.page.get_by_role("button", name=OPEN).click()
        s.page.get_by_role("button", name=re.compile(r"all \d+ choices")).click()
        s.page.get_by_role("radio", name="gzip-7", exact=True).check()
        row = s.page.get_by_role("row").filter(has=s.page.get_by_role("radio", name="gzip-7", exact=True))
        expect(row).to_contain_text(re.compile(r"\d+\.\d ± \d+\.\d %"))
        said = next(line for line in s.of(one, "estimates")["settings"] if line["setting"] == "gzip-7")
        s.page.get_by_role("button", name="Apply").click()
        expect(s.page.get_by_role("status").filter(has_text="gzip-7")).to_be_visible()
        file = SHARES / one["name"] / "written.log"
        file.write_bytes((SHARES / one["name"] / "1.log").read_bytes())
        os.sync()
        s.api("/pool/checkpoint", "POST")
        stored = s.of(one, "explain-file?path=written.log")
        check([part["codec"] for part in stored["parts"]] == ["gzip-7"], f"it is stored as {stored['parts']}")
        saved = 100 * (1 - stored["stored_bytes"] / stored["raw_bytes"])
        check(abs(saved - said["saving_percent"]) < 15, f"{saved} % of the file are saved, estimated were {said}")
        expect(s.page.get_by_role("figure", name="Disk bytes written, by codec")).to_contain_text(re.compile(r"gzip-7\s+[1-9]"))
        s.page.get_by_role("button", name="Undo").click()
        expect(s.page.get_by_role("button", name=OPEN)).to_contain_text(before)
        file.unlink()


@test()
def old_data_is_rewritten_as_a_job(pool):
    """With the second choice of the form a recompression runs as a job, whose progress is in the card."""
    with session() as s:
        one = data_object(s)
        s.go(f"/o/{one['id']}")
        s.page.get_by_role("button", name=OPEN).click()
        s.page.get_by_role("radio", name=re.compile("also rewrite existing data")).check()
        s.page.get_by_role("button", name="Apply").click()
        check(any(j["kind"] == "recompress" and j["target"] == one["name"] for j in s.api("/jobs")) or
              s.page.get_by_text(re.compile("recompress .*: done")).count(), "no job was started")


@test()
def stale_page_is_refused_and_reads_again(pool):
    """Properties that were changed elsewhere meanwhile are not overwritten: the page says so, and has the new ones."""
    with session() as s:
        one = data_object(s)
        before = in_force(s, one)
        s.go(f"/o/{one['id']}")
        s.page.get_by_role("button", name=OPEN).click()
        s.page.get_by_role("radio", name="off", exact=True).check()
        s.patch(one, {"compression": another(before["value"])})
        with s.page.expect_response(lambda r: r.request.method == "PATCH") as patched:
            s.page.get_by_role("button", name="Apply").click()
        if patched.value.status == 412:
            expect(s.page.get_by_role("alert")).to_contain_text("changed in the meantime")
            check(in_force(s, one)["value"] == another(before["value"]), "it was overwritten")
        s.patch(one, {"compression": before["value"]})


@test(mock_only=True)
def stale_page_is_refused_without_events(pool):
    """The same without an event about the change: 412, in words."""
    with session() as s:
        one = data_object(s)
        s.go(f"/o/{one['id']}")
        s.page.get_by_role("button", name=OPEN).click()
        s.page.get_by_role("radio", name="off", exact=True).check()
        s.mock.state.pool.own[one["id"]]["unit"] = "64K"
        s.page.get_by_role("button", name="Apply").click()
        expect(s.page.get_by_role("alert")).to_contain_text("changed in the meantime")
        s.page.get_by_role("button", name="Apply").click()
        expect(s.page.get_by_role("status").filter(has_text="off")).to_be_visible()


@test(mock_only=True)
def value_is_inherited_again(pool):
    """`inherit` names what it comes to and from where, and removes the own value."""
    with session() as s:
        one = data_object(s)
        s.go(f"/o/{one['id']}")
        expect(s.page.get_by_text("set here; folder projects has zstd-3")).to_be_visible()
        s.page.get_by_role("button", name=OPEN).click()
        s.page.get_by_role("radio", name="inherit (zstd-3)").check()
        s.page.get_by_role("button", name="Apply").click()
        expect(s.page.get_by_text("inherited from folder projects")).to_be_visible()
        check(in_force(s, one)["source"] == "folder", str(in_force(s, one)))
        s.page.get_by_role("link", name="folder projects").click()
        expect(s.page.get_by_role("heading", level=1)).to_contain_text("projects")


@test()
def rows_do_not_move_while_an_estimate_comes_in(pool):
    """Each row of the choices lies where it lay before the first figures came."""
    with session() as s:
        one = data_object(s)
        s.go(f"/o/{one['id']}")
        s.page.get_by_role("button", name=OPEN).click()
        where = [s.page.locator("input[value=off]"), s.page.get_by_role("button", name="Apply")]
        expect(where[0]).to_be_visible()
        before = [box.bounding_box()["y"] for box in where]
        expect(s.page.get_by_role("region", name="Compression", exact=True)).to_contain_text(re.compile("estimated from .* (ago|just now)"))
        after = [box.bounding_box()["y"] for box in where]
        check(before[0] == after[0], f"a row moved from {before} to {after}")


@test(mock_only=True)
def an_estimate_that_others_cancel_is_started_again(pool):
    """While the list is open, an estimate that another page cancels is started again; one that it has found is not its own to cancel."""
    with session() as s:
        one = data_object(s)

        def estimates():
            return [job for job in s.api("/jobs") if job["kind"] == "estimate"]

        # This one is slow, the next one is not.
        s.steer(estimate_pace=0.1)
        found = s.api(f"/objects/{one['id']}/estimates", "POST", choices=["off", "lz4", "zstd-3", "gzip-9"])["id"]
        s.steer(estimate_pace=1.2)
        s.go(f"/o/{one['id']}")
        s.page.get_by_role("button", name=OPEN).click()
        region = s.page.get_by_role("region", name="Compression", exact=True)
        expect(region).to_contain_text("in progress")
        s.page.locator("#choices").get_by_role("button", name="Cancel").click()
        check([job["state"] for job in estimates()] == ["running"], f"another's estimate was cancelled: {estimates()}")
        s.page.get_by_role("button", name=OPEN).click()
        expect(region).to_contain_text("in progress")
        s.api(f"/jobs/{found}", "DELETE")
        expect(region).to_contain_text(re.compile("estimated from .* (ago|just now)"))
        check([job["id"] for job in estimates()][0] == found and len(estimates()) == 2, f"one was started instead: {estimates()}")


@test(mock_only=True)
def data_that_was_not_sampled_yet_is_estimated_later(pool):
    """An estimate that found nothing, because the data is in the write buffer, is made again while the list is open."""
    with session() as s:
        s.mock.state.pool.is_unsampled = True
        s.go(f"/o/{data_object(s)['id']}")
        s.page.get_by_role("button", name=OPEN).click()
        region = s.page.get_by_role("region", name="Compression", exact=True)
        expect(region).to_contain_text("no data to estimate from yet")
        s.mock.state.pool.is_unsampled = False
        expect(region).to_contain_text(re.compile("estimated from .* (ago|just now)"))


@test()
def compression_is_changed_by_keys_alone(pool):
    """Tab, Enter and arrows open the list, choose and apply; Escape closes it and gives the focus back."""
    with session() as s:
        one = data_object(s)
        before = in_force(s, one)["value"]
        s.go(f"/o/{one['id']}")
        button = s.page.get_by_role("button", name=OPEN)
        button.focus()
        s.page.keyboard.press("Enter")
        s.page.keyboard.press("Tab")
        for _ in range(4):
            if s.page.evaluate("document.activeElement.type") == "radio":
                break
            s.page.keyboard.press("Tab")
        s.page.keyboard.press("ArrowDown")
        chosen = s.page.evaluate("document.activeElement.value")
        check(chosen != before, f"the arrow did not move from {before}")
        s.page.keyboard.press("Escape")
        expect(button).to_be_focused()
        expect(s.page.locator("input[name=setting]")).to_have_count(0)


@test(mock_only=True)
def rule_is_set_in_the_table(pool):
    """A codec for a type and a mode is chosen in its cell, and becomes a part of the rule."""
    with session() as s:
        one = data_object(s)
        s.go(f"/o/{one['id']}/rules")
        s.page.get_by_label("sqlite, energy").select_option("lz4")
        expect(s.page.get_by_role("row", name=re.compile("^sqlite"))).to_contain_text("set here")
        rules = {p["key"]: p["value"] for p in s.of(one, "properties")["properties"]}
        check(rules["rule.sqlite"] == "performance:lz4,energy:lz4,archive:zstd-9", rules["rule.sqlite"])
        s.page.get_by_label("Type").fill("x/y")
        s.page.get_by_role("button", name="Add a rule").click()
        expect(s.page.get_by_role("alert")).to_contain_text("is not a file type")


@test()
def rule_set_brings_its_rules(pool):
    """Choosing a rule set shows its rules as rows; a codec chosen in one of them is a rule of the object, and the others stay those of the set."""
    with session() as s:
        one = data_object(s)
        s.go(f"/o/{one['id']}/rules")

        def row(name):
            return s.page.get_by_role("row").filter(has=s.page.get_by_role("rowheader", name=name, exact=True))

        expect(row("redo")).to_have_count(0)
        s.page.get_by_label("Rule set").select_option("database")
        expect(row("redo")).to_contain_text("rule set database")
        expect(s.page.get_by_label("wal, all modes")).to_have_value("lz4")
        s.page.get_by_label("wal, all modes").select_option("off")
        expect(row("wal")).to_contain_text("set here")
        expect(row("redo")).to_contain_text("rule set database")
        own = {p["key"]: p["value"] for p in s.of(one, "properties")["properties"]}
        check((own["rule-set"], own["rule.wal"]) == ("database", "off"), f"{own}")


@test()
def property_is_set_and_inherited_in_place(pool):
    """A property is changed in its row, a bad value is refused with the allowed ones, and it is inherited again."""
    with session() as s:
        one = data_object(s)
        s.go(f"/o/{one['id']}/properties")
        row = s.page.get_by_role("row").filter(has=s.page.get_by_role("rowheader", name=re.compile("^mode")))
        row.get_by_role("button", name="Change mode").click()
        row.get_by_role("combobox").select_option("archive")
        row.get_by_role("button", name="Set").click()
        expect(row).to_contain_text("set here")
        row.get_by_role("button", name="Change mode").click()
        row.get_by_role("combobox").select_option("other ...")
        row.get_by_role("textbox").fill("lazy")
        row.get_by_role("button", name="Set").click()
        expect(row.get_by_role("alert")).to_contain_text("mode")
        row.get_by_role("button", name="Cancel").click()
        row.get_by_role("button", name="Inherit mode").click()
        expect(row).not_to_contain_text("set here")


@test()
def pool_has_properties_of_its_own(pool):
    """Settings has the properties of the pool, which all else inherits."""
    with session() as s:
        s.go("/settings/pool")
        row = s.page.get_by_role("row").filter(has=s.page.get_by_role("rowheader", name=re.compile("^keep")))
        row.get_by_role("button", name="Change keep").click()
        row.get_by_role("textbox").fill("48h,7d,4w")
        row.get_by_role("button", name="Set").click()
        expect(row).to_contain_text("48h,7d,4w")
        row.get_by_role("button", name="Inherit keep").click()
        expect(row).to_contain_text("24h,7d,4w")
