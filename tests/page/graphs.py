"""Analytics and explain: breakdowns, narrowing, zoom, comparison, heat map, CSV, worksheets; the map with its reasons."""

import re

from playwright.sync_api import expect

from .harness import check, session, test


@test()
def graph_is_narrowed_by_a_click_and_widened(pool):
    """A click on a key shows only that, by the next breakdown; removing the filter shows all again."""
    with session() as s:
        s.go("/analytics?dataset=codec.stored&by=codec")
        card = s.page.get_by_role("region", name="bytes written, after compression")
        key = card.locator("button.key").first
        name = key.get_attribute("title").removeprefix("only ")
        key.click()
        expect(card.get_by_role("button", name=re.compile(f"codec: {re.escape(name)}"))).to_be_visible()
        expect(card.get_by_label("bytes written, after compression by")).to_have_value("object")
        card.get_by_role("button", name=re.compile(f"codec: {re.escape(name)}")).click()
        expect(card.get_by_label("bytes written, after compression by")).to_have_value("codec")


@test()
def span_is_zoomed_by_dragging_for_all_graphs(pool):
    """Dragging over a graph shows that span in all, and the way back is a click."""
    with session() as s:
        s.go("/analytics")
        plot = s.page.locator(".u-over").first
        box = plot.bounding_box()
        s.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
        s.page.mouse.down()
        s.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=5)
        s.page.mouse.up()
        back = s.page.get_by_role("button", name=re.compile(r"\d min ✕"))
        expect(back).to_be_visible()
        back.click()
        expect(s.page.get_by_role("button", name="1 h", exact=True)).to_have_attribute("aria-pressed", "true")


@test()
def spans_are_compared(pool):
    """The span before is laid over the graphs, with the difference in words."""
    with session() as s:
        s.go("/analytics")
        s.page.get_by_role("checkbox", name="compare with the previous span").check()
        expect(s.page.get_by_text(re.compile("- previous span")).nth(1)).to_be_visible()
        if s.mock:
            expect(s.page.get_by_text(re.compile(r"before .*: [+-]?\d+ %")).first).to_be_visible()


@test()
def csv_has_what_the_graph_has(pool):
    """CSV has a line a step and a column a key, with the names of the table below the graph."""
    with session() as s:
        s.go("/analytics?dataset=bytes&by=operation")
        card = s.page.get_by_role("region", name="bytes that clients read, wrote and discarded")
        expect(card.locator(".key").first).to_be_visible()
        with s.page.expect_download() as download:
            card.get_by_role("button", name="CSV").click()
        lines = open(download.value.path()).read().splitlines()
        check(lines[0].startswith("unix_s,") and len(lines) > 10, f"{lines[:2]}")
        check({len(line.split(",")) for line in lines} == {len(lines[0].split(","))}, "lines of different lengths")
        check(download.value.suggested_filename == "bytes-by-operation.csv", download.value.suggested_filename)


@test()
def heat_map_tells_quantiles_of_a_moment(pool):
    """The heat map is walked by the arrow keys, and each column has its quantiles in words."""
    with session() as s:
        s.go("/analytics?dataset=latency&form=heat")
        heat = s.page.get_by_role("slider", name=re.compile("choose a moment"))
        heat.focus()
        whole = heat.get_attribute("aria-valuetext")
        check("p99" in whole, whole)
        s.page.keyboard.press("ArrowLeft")
        expect(heat).not_to_have_attribute("aria-valuetext", whole)


@test()
def worksheet_is_saved_and_opened(pool):
    """Graphs are kept under a name and come back with it."""
    with session() as s:
        s.go("/analytics")
        s.page.get_by_label("Add a graph").select_option(index=1)
        expect(s.page.locator(".graphs > section")).to_have_count(5)
        s.page.get_by_role("button", name="Save").click()
        s.page.get_by_role("textbox", name="Name of the worksheet").fill("cost of gzip")
        s.page.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(s.page.get_by_label("Worksheet", exact=True)).to_have_value("cost of gzip")
        s.page.get_by_label("Worksheet", exact=True).select_option("")
        expect(s.page.locator(".graphs > section")).to_have_count(4)
        s.page.get_by_label("Worksheet", exact=True).select_option("cost of gzip")
        expect(s.page.locator(".graphs > section")).to_have_count(5)
        s.page.get_by_role("button", name="Delete").click()
        expect(s.page.get_by_label("Worksheet", exact=True)).to_have_value("")


@test()
def paused_graphs_stand_still(pool):
    """No graph is asked for while the view is paused."""
    with session() as s:
        s.go("/analytics")
        s.page.get_by_role("button", name="1 min", exact=True).click()
        s.page.get_by_role("button", name="Pause").click()
        expect(s.page.get_by_role("button", name="Resume")).to_be_visible()
        s.page.wait_for_load_state("networkidle")
        asked = []
        s.page.on("request", lambda request: asked.append(request.url) if "/analytics/" in request.url else None)
        # Live figures go on meanwhile: three of them, where a graph of a minute is asked for each second.
        s.page.evaluate("new Promise(done => { let n = 0; const c = new BroadcastChannel('shale-events'); c.onmessage = e => e.data.name === 'figures' && ++n === 3 && done() })")
        check(not asked, f"asked for {asked}")


@test()
def map_is_explained_place_by_place(pool):
    """The map has words for each place by keys, and Enter says why it is stored so."""
    with session() as s:
        one = s.objects("volume")[0]
        s.go(f"/o/{one['id']}/explain")
        cells = s.page.get_by_role("slider", name=re.compile("Map of the object"))
        cells.focus()
        for _ in range(40):
            if "mostly" in cells.get_attribute("aria-valuetext"):
                break
            s.page.keyboard.press("ArrowRight")
        expect(cells).to_have_attribute("aria-valuetext", re.compile("mostly"))
        s.page.keyboard.press("Enter")
        expect(s.page.get_by_role("heading", name="Why")).to_be_visible()
        expect(s.page.get_by_role("row", name=re.compile("zstd|lz4|raw|zle")).first).to_be_visible()


@test(mock_only=True)
def directories_are_entered_in_the_tree_map(pool):
    """The tree map of a share has its directories by size, and a click enters one."""
    with session() as s:
        one = s.objects("share")[0]
        s.go(f"/o/{one['id']}/explain")
        s.page.get_by_role("button", name=re.compile("^src")).click()
        expect(s.page.get_by_role("button", name=re.compile("^store.c"))).to_be_visible()
