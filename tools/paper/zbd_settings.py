"""What hurts databases on Shale, and what helps: TPC-C with one thing changed at a time, and the time of a commit and of a read layer by layer."""

import tpcc
from lab import data, output
from lab.database import MariaDB, PostgreSQL
from lab.place import RINGS, SERVER_MEMORY_MIN, left_beside_server
from lab.share import Shares
from zbd_databases import prepare, transact, warm
from zbd_files import build

# How a database comes, and natively with no more memory than beside a server of Shale.
AS_IT_COMES, SAME_MEMORY = "as it comes", "the memory left beside Shale"
# (name, of which database, its settings, properties of the volume, how it is served)
VARIANTS = [
    (AS_IT_COMES, PostgreSQL, [], {"unit": "32K"}, {}),
    ("unit=8K", PostgreSQL, [], {"unit": "8K"}, {}),
    ("unit=4K", PostgreSQL, [], {"unit": "4K"}, {}),
    ("unit=8K, io_uring", PostgreSQL, [], {"unit": "8K"}, {"rings": True}),
    ("unit=8K, NBD", PostgreSQL, [], {"unit": "8K"}, {"door": "nbd"}),
    ("unit=8K, wal_compression", PostgreSQL, ["wal_compression=lz4"], {"unit": "8K"}, {}),
    ("unit=8K, no recycled log", PostgreSQL, ["wal_recycle=off", "wal_init_zero=off"], {"unit": "8K"}, {}),
    ("unit=8K, open_datasync", PostgreSQL, ["wal_sync_method=open_datasync"], {"unit": "8K"}, {}),
    ("unit=8K, compression=off", PostgreSQL, [], {"unit": "8K", "compression": "off"}, {}),
    ("unit=8K, --memory 64M", PostgreSQL, [], {"unit": "8K"}, {"server_memory": SERVER_MEMORY_MIN}),
    ("unit=8K, in a share", PostgreSQL, [], {"unit": "8K"}, {"door": "share"}),
    (AS_IT_COMES, MariaDB, [], {"unit": "32K"}, {}),
    ("unit=16K", MariaDB, [], {"unit": "16K"}, {}),
    ("unit=16K, fsync", MariaDB, ["innodb-flush-method=fsync"], {"unit": "16K"}, {}),
    ("unit=16K, NBD", MariaDB, [], {"unit": "16K"}, {"door": "nbd"}),
    ("unit=16K, in a share", MariaDB, [], {"unit": "16K"}, {"door": "share"}),
]
# On throttled disks, for time's sake.
THROTTLED = {AS_IT_COMES, "unit=8K", "unit=8K, NBD", "unit=8K, in a share", "unit=16K", "unit=16K, NBD", "unit=16K, in a share"}
QUICK = {(AS_IT_COMES, PostgreSQL), ("unit=8K, wal_compression", PostgreSQL), ("unit=16K", MariaDB)}


def possible(lab, how):
    """Whether this machine has what a variant needs; says so if not."""
    if how.get("rings") and not RINGS.exists():
        lab.report.note("This kernel has no FUSE over io_uring: that variant is left out.")
        return False
    if how.get("door") == "nbd" and "nbd" not in output("ls", "/sys/block"):
        lab.report.note("This kernel is no NBD client (module nbd): that variant is left out.")
        return False
    return True


def is_wanted(lab, disk, name, kind):
    """Whether a variant is measured on a disk in this run."""
    return lab.chooses("databases", kind.name) and ((name, kind) in QUICK if lab.quick else disk.name == "raw" or name in THROTTLED)


def settings(lab, how):
    """One thing changed at a time, with one client and with several."""
    tables = lab.work / "tpcc-settings"
    tables.mkdir()
    tpcc.write(tables, how["warehouses"], how["items"])
    for disk in lab.disks(*how["disks"]):
        for name, kind, lines, properties, served in VARIANTS:
            if not is_wanted(lab, disk, name, kind) or not possible(lab, served):
                continue
            for setup in lab.setups("zstd-1") + (lab.setups("native") if name == AS_IT_COMES else []):
                measure(lab, how, tables, disk, setup, name, kind, lines, properties if setup.compression else {}, served)
                if not setup.compression and disk.name == "raw":
                    measure(lab, how, tables, disk, setup, SAME_MEMORY, kind, lines, {}, {}, memory=left_beside_server(how["db_memory"]))
    layers(lab, how)


def show(lab, how):
    """All variants, and the times of a commit and of a read."""
    report = lab.report
    report.heading("What helps databases")
    for disk in dict.fromkeys(r["disk"] for r in report.table_of("settings")):
        for kind in (PostgreSQL, MariaDB):
            rows = report.select("settings", disk=disk, database=kind.name)
            native = {r["clients"]: r["per_s"] for r in rows if r["setup"] == "native" and r["variant"] == AS_IT_COMES}
            report.table(["database, disk", "variant", "clients", "transactions/s", "of native", "load's CPU, s", "server's CPU, s", "disk written, MB"],
                         [[f"{kind.name}, {disk}", r["variant"] if r["setup"] != "native" else f"native, {r['variant']}", r["clients"], r["per_s"],
                           round(r["per_s"] / native[r["clients"]], 2) if r["clients"] in native else None, r["load_cpu_s"], r["server_cpu_s"], round(r["disk_written_bytes"] / 1e6)] for r in rows])
    show_layers(report)


def place_of(lab, disk, setup, properties, served, **how):
    """The file system of a variant: natively, on a volume, or a share without loop device and ext4."""
    if setup.compression and served.get("door") == "share":
        return Shares(lab, disk, {"database": {"compression": setup.compression, **properties}}, **how)
    return lab.place(disk, setup, properties=properties, **(served if setup.compression else {}), **how)


def measure(lab, how, tables, disk, setup, name, kind, lines, properties, served, memory=None):
    """One variant on one disk."""
    with place_of(lab, disk, setup, properties, served, size=how["size"], memory=memory or how["db_memory"]) as place, kind(place, how["db_memory"], lines) as database:
        prepare(database, tables)
        warm(lab, database, how)
        for clients in how["clients"]:
            with place.meter() as meter:
                told = transact(lab, database, how, clients)
            lab.report.row("settings", disk=disk.name, setup=setup.name, variant=name, database=kind.name, clients=clients, **told, **meter.figures())


def layers(lab, how):
    """The time of a durable write of 8 KiB and of a read of 16 KiB, layer by layer."""
    size = {"size": how["size"], "memory": how["db_memory"]}
    for disk in lab.disks(*how["disks"]):
        for setup in lab.setups("native", "off", "zstd-1"):
            with lab.place(disk, setup, properties={"unit": "8K"} if setup.compression else {}, **size) as place:
                paths = {"ext4": place.path / "page"}
                if place.uses_shale:
                    # The file of the mount itself: without loop device and without ext4 on it. Its volume is another one.
                    place.shale("create", place.pool, "bare", "--size", "768M", "-o", "unit=8K")
                    paths["file of the mount"] = place.directory / "volumes/bare"
                    paths["ext4 below the pool"] = place.pool.parent / "page"
                time_pages(lab, place, disk, setup, paths)
            if setup.compression:
                with Shares(lab, disk, {"database": {"compression": setup.compression, "unit": "8K"}}, **size) as place:
                    time_pages(lab, place, disk, setup, {"file of a share": place.path / "page"})


def show_layers(report):
    """A row for each layer."""
    report.heading("The time of a commit and of a read, layer by layer")
    report.text("Microseconds, one at a time: from write to the end of fdatasync, 8 KiB; and of a read of 16 KiB past the page cache, at random in 512 MiB.")
    rows = report.table_of("layers")
    report.table(["disk", "set-up", "layer", "commit, us", "99 %, us", "read, us", "99 %, us"],
                 [[r["disk"], r["setup"], r["layer"], r["commit_us"], r["commit_p99_us"], r["read_us"], r["read_p99_us"]] for r in rows])


def time_pages(lab, place, disk, setup, paths):
    """Commits to each of these files, and reads from it."""
    seconds = 1 if lab.quick else 5
    for layer, path in paths.items():
        _, commit, commit_p99 = map(float, place.run([build(lab, "commit"), path, data.mail(), seconds]).split())
        _, read, read_p99 = map(float, place.run([build(lab, "pageread"), path, data.mail(), seconds]).split())
        lab.report.row("layers", disk=disk.name, setup=setup.name, layer=layer, commit_us=commit, commit_p99_us=commit_p99, read_us=read, read_p99_us=read_p99)
