"""The ZBD paper's loads on databases: TPC-C's transactions, TPC-H's queries, and where the disk is read."""

import re
import time
from pathlib import Path

import tpcc
from lab import data, size
from lab.database import MariaDB, PostgreSQL
from lab.disk import DISKS
from lab.reads import Reads
from lab.report import mean, middle
from zbd_files import curves, disks_of, found, of_native, ratios, saving

HERE = Path(__file__).resolve().parent
DATABASES = [PostgreSQL, MariaDB]
# Weights of the transactions: the specification's least shares, the rest orders.
MIX = {"new_order": 45, "payment": 43, "order_status": 4, "delivery": 4, "stock_level": 4}
TPCH = {
    "region": "r_regionkey int primary key, r_name varchar(25), r_comment varchar(152)",
    "nation": "n_nationkey int primary key, n_name varchar(25), n_regionkey int, n_comment varchar(152)",
    "supplier": "s_suppkey int primary key, s_name varchar(25), s_address varchar(40), s_nationkey int, s_phone varchar(15), s_acctbal decimal(15,2), s_comment varchar(101)",
    "part": "p_partkey int primary key, p_name varchar(55), p_mfgr varchar(25), p_brand varchar(10), p_type varchar(25), p_size int, p_container varchar(10), p_retailprice decimal(15,2), p_comment varchar(23)",
    "partsupp": "ps_partkey int, ps_suppkey int, ps_availqty int, ps_supplycost decimal(15,2), ps_comment varchar(199), primary key (ps_partkey, ps_suppkey)",
    "customer": "c_custkey int primary key, c_name varchar(25), c_address varchar(40), c_nationkey int, c_phone varchar(15), c_acctbal decimal(15,2), c_mktsegment varchar(10), c_comment varchar(117)",
    "orders": "o_orderkey int primary key, o_custkey int, o_orderstatus char(1), o_totalprice decimal(15,2), o_orderdate date, o_orderpriority varchar(15), o_clerk varchar(15), o_shippriority int, o_comment varchar(79)",
    "lineitem": "l_orderkey int, l_partkey int, l_suppkey int, l_linenumber int, l_quantity decimal(15,2), l_extendedprice decimal(15,2), l_discount decimal(15,2), l_tax decimal(15,2), l_returnflag char(1), "
                "l_linestatus char(1), l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct varchar(25), l_shipmode varchar(10), l_comment varchar(44), primary key (l_orderkey, l_linenumber)",
}
TPCH_INDEXES = [f"create index {table}_{column} on {table} ({column})" for table, column in
                [("lineitem", "l_shipdate"), ("lineitem", "l_partkey"), ("lineitem", "l_suppkey"), ("orders", "o_custkey"), ("orders", "o_orderdate"), ("partsupp", "ps_suppkey"), ("customer", "c_nationkey")]]
# More than a client of MariaDB makes: it stops when its time is up.
CALLS_A_SECOND_MAX = 5000


def use(database):
    """What precedes statements: MariaDB wants to know the database."""
    return "use paper; " if database.name == "mariadb" else ""


def create(database, schema):
    """Makes the tables."""
    if database.name == "mariadb":
        database.sql("create database paper;")
    database.sql(use(database) + "".join(f"create table {table} ({columns});" for table, columns in schema.items()))


def queries_of(path):
    """The queries of tpch.sql by name."""
    parts = re.split(r"^-- (Q\d+)$", path.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (q.strip() for q in parts[2::2])))


def place_of(lab, disk, setup, kind, how, unit=None):
    """A place for a database: units as large as its pages."""
    properties = {"unit": unit or kind.page} if setup.compression else {}
    return lab.place(disk, setup, size=how["size"], memory=how["db_memory"], properties=properties)


def warm(lab, database, how):
    """From cold to what a server that has run for a while has in its caches: a disk of 200 operations a second needs minutes for that."""
    database.cold()
    transact(lab, database, {**how, "tpcc_seconds": how["warm_seconds"]}, how["clients"][-1])


def transact(lab, database, how, clients):
    """Runs TPC-C's mix for a while; returns transactions and orders a second."""
    numbers = f"{how['warehouses']}, {how['items']}, {tpcc.customers_of(how['items'])}"
    began = time.monotonic()
    if database.name == "postgresql":
        scripts = []
        for name, weight in MIX.items():
            script = lab.work / f"{name}.sql"
            script.write_text(f"select {name}({numbers});\n")
            scripts += ["-f", f"{script}@{weight}"]
        out = database.place.run([database.bin / "pgbench", "-h", database.socket_directory, "-U", "postgres", "-n", "-c", clients, "-j", min(clients, 2),
                                  "-T", how["tpcc_seconds"], *scripts, "postgres"])
        orders = re.search(r"new_order\.sql\n.*?- (\d+) transactions", out, re.DOTALL)
        return {"per_s": float(re.search(r"tps = ([\d.]+)", out)[1]), "orders_per_minute": round(int(orders[1]) * 60 / how["tpcc_seconds"]),
                "latency_ms": float(re.search(r"latency average = ([\d.]+)", out)[1])}
    calls = lab.work / "calls.sql"
    calls.write_text(f"use paper; set @until_when = unix_timestamp(sysdate(6)) + {how['tpcc_seconds']}, @done = 0, @orders_made = 0;\n"
                     + f"call next_one({numbers});\n" * (how["tpcc_seconds"] * CALLS_A_SECOND_MAX))
    processes = []
    for _ in range(clients):
        with open(calls, encoding="ascii") as file:
            processes.append(database.place.spawn(database._client(), stdin=file, stdout=-1, stderr=-1, text=True))
    done = made = 0
    for process in processes:
        out, errors = process.communicate()
        if "time is up" not in errors:
            raise SystemExit(f"mariadb: {errors or 'it made more calls than there were'}")
        done, made = done + int(out.split()[0]), made + int(out.split()[1])
    took = time.monotonic() - began
    return {"per_s": round(done / took, 2), "orders_per_minute": round(made * 60 / took), "latency_ms": round(1000 * clients * took / max(done, 1), 2)}


def transactions(lab, how):
    """Figures 6 and 11(b): TPC-C on both databases, by clients and CPUs; and by the size of units."""
    tables = lab.work / "tpcc"
    tables.mkdir()
    tpcc.write(tables, how["warehouses"], how["items"])
    for disk in lab.disks(*how["disks"], *how["spindles"]):
        for kind in databases_on(lab, disk, how):
            for setup in lab.setups(*how["database_setups"]):
                measure_tpcc(lab, tables, disk, kind, setup, how, kind.page)


# Of native, figure 6, by the disk that is like theirs: one disk, and eight.
TPCC = {"disk2010": {"lzo": 1.29, "zlib": 1.34}, None: {"lzo": 0.69, "zlib": 0.66}}


def show_transactions(lab, how):
    """Bars relative to native for each disk and database."""
    report = lab.report
    report.heading("TPC-C (figures 6 and 11)")
    for disk in disks_of(report, "tpcc"):
        for kind in DATABASES:
            rows = report.select("tpcc", disk=disk, database=kind.name, unit=kind.page)
            if not rows:
                continue
            names, cpus = found(report, "tpcc", "setup", disk=disk, database=kind.name), max(r["cpus"] for r in rows)
            groups = {f"{c} client{'s' if c > 1 else ''}": c for c in sorted({r["clients"] for r in rows})}
            of = {"disk": disk, "database": kind.name, "unit": kind.page, "cpus": cpus}
            theirs = TPCC.get(disk, TPCC[None])
            report.bars(f"tpcc-{disk}-{kind.name}", f"TPC-C's mix: transactions a second, of native's, {kind.name}, {disk}", list(groups), names,
                        lambda group, name, of=of, groups=groups: ratios(report, "tpcc", "per_s", **of, setup=name, clients=groups[group]), "of native", theirs=lambda group, name, theirs=theirs: theirs.get(name),
                        said=f"Theirs: figure 6, {'one disk' if disk == 'disk2010' else 'eight disks'}, by its text, lzo and zlib; MyISAM, whose commits are not durable. {disk}: {DISKS[disk].title}.")
            report.bars(f"tpcc-{disk}-{kind.name}-read", f"TPC-C's mix: bytes read for each transaction, of native's, {kind.name}, {disk}", list(groups), names,
                        lambda group, name, of=of, groups=groups: read_each(report, of | {"clients": groups[group]}, name), "of native", theirs=lambda group, name: 4 if name == "lzo" else None,
                        said="Theirs: figure 11b, by its text: more than four times the reads, for whole extents of 32 KB are read. The text names no codec.")
    for disk in disks_of(report, "tpcc"):
        for kind in DATABASES:
            rows = report.select("tpcc", disk=disk, database=kind.name)
            if not rows:
                continue
            report.table([f"set-up, {kind.name}, {disk}", "unit", "CPUs", "clients", "transactions/s", "of native", "orders/min", "latency, ms", "CPU, % of one", "saved, %", "disk read, MB", "disk written, MB"],
                         [[r["setup"], r["unit"], r["cpus"], r["clients"], r["per_s"], of_native(report, "tpcc", {**r, "unit": kind.page}, "per_s", "database", "cpus", "clients", "unit"),
                           r["orders_per_minute"], r["latency_ms"], r["cpu_percent"], r.get("saving_percent"), round(r["disk_read_bytes"] / 1e6), round(r["disk_written_bytes"] / 1e6)] for r in rows])


def read_each(report, of, name):
    """Bytes that a set-up read from the disk for each transaction, as part of native's."""
    each = {r["setup"]: r["disk_read_bytes"] / (r["per_s"] * r["seconds"]) for r in report.select("tpcc", **of) if r["setup"] in (name, "native")}
    return [each[name] / each["native"]] if each.get("native") and name in each else []


def databases_on(lab, disk, how):
    """Those that are measured on a disk: not all on all, for time's sake."""
    return [d for d in DATABASES if d.name in how["databases"][disk.name] and lab.chooses("databases", d.name)]


def prepare(database, tables):
    """Fills a database with TPC-C's tables, indices and functions."""
    create(database, tpcc.SCHEMA)
    for table in tpcc.SCHEMA:
        database.load(table, tables / f"{table}.tsv", "false", "\\t")
    database.sql(use(database) + "".join(f"{i};" for i in tpcc.INDEXES))
    database.sql((HERE / f"tpcc-{database.name}.sql").read_text())
    database.analyse()


def measure_tpcc(lab, tables, disk, kind, setup, how, unit):
    """One database on one set-up, for each number of clients; with fewer CPUs for the middle one."""
    with place_of(lab, disk, setup, kind, how, unit) as place, kind(place, how["db_memory"]) as database:
        prepare(database, tables)
        middle_clients = how["clients"][len(how["clients"]) // 2]
        warm(lab, database, how)
        for cpus, clients in [(how["cpus"][-1], c) for c in how["clients"]] + [(c, middle_clients) for c in how["cpus"][:-1]]:
            place.hold_to(cpus)
            with place.meter() as meter:
                told = transact(lab, database, how, clients)
            lab.report.row("tpcc", disk=disk.name, database=kind.name, setup=setup.name, unit=unit, cpus=cpus, clients=clients, saving_percent=saving(place), **told, **meter.figures())


def extents(lab, how):
    """Figure 10(c): TPC-C by the size of extents."""
    by_size(lab, how, "extents-tpcc", "extent", how["tpcc_extents"], lambda extent: {"extent": extent})


def metadata(lab, how):
    """Figure 13(c): TPC-C by the memory that the server has; the load has as much in each row."""
    by_size(lab, how, "metadata-tpcc", "memory", how["caches"], lambda cache: {"server_memory": size(cache), "memory": how["db_memory"] + size(cache)})


def by_size(lab, how, table, field, sizes, placed):
    """TPC-C on PostgreSQL with lzo, for each size."""
    tables = lab.work / table
    tables.mkdir()
    tpcc.write(tables, how["warehouses"], how["items"])
    clients = how["clients"][len(how["clients"]) // 2]
    for disk in lab.disks(how["disks"][0]):
        for setup in lab.setups("lzo"):
            for one in sizes:
                with lab.place(disk, setup, **({"size": how["size"], "memory": how["db_memory"], "properties": {"unit": PostgreSQL.page}} | placed(one))) as place, PostgreSQL(place, how["db_memory"]) as database:
                    prepare(database, tables)
                    warm(lab, database, how)
                    with place.meter() as meter:
                        told = transact(lab, database, how, clients)
                    lab.report.row(table, **{"disk": disk.name, "load": "tpcc", field: size(one)}, clients=clients, **told, **meter.figures())


def show_extents(lab, how):
    """Figure 10(c)."""
    curves(lab, "extents-tpcc", "extent", "TPC-C by the size of extents (figure 10c)", "extent",
           lambda load, first: {"theirs_at": {"theirs, falls past it": 32 << 10}, "said": "Theirs: figure 10c, by its text: roughly the same up to 32 KB, and less with larger extents."})


def show_metadata(lab, how):
    """Figure 13(c)."""
    curves(lab, "metadata-tpcc", "memory", "TPC-C by memory for metadata (figure 13c)", "--memory",
           lambda load, first: {"theirs": {"theirs, most metadata cache": first / (1 - 0.33)},
                                "said": "Theirs: figure 13c, by its text, of ours with the least: up to 33 % less performance with the smallest cache for metadata alone. --memory is all memory of the server."})


def loaded(lab, database, scale):
    """Fills a database with TPC-H's tables and indices."""
    tables = data.tpch(scale)
    create(database, TPCH)
    for table in TPCH:
        database.load(table, tables / f"{table}.csv", "true", ",")
    database.sql(use(database) + "".join(f"{i};" for i in TPCH_INDEXES))
    database.analyse()


def queries(lab, how):
    """Figures 7 and 8: TPC-H's queries one after the other, from cold; Q3 with one CPU and two."""
    ask(lab, how, "tpch", how["disks"], how["scale"])


def queries_large(lab, how):
    """The same on a database that is larger than the memory, on throttled disks."""
    wanted = how | {"databases": how["large_databases"], "database_setups": [s for s in how["few_setups"] if s in how["database_setups"]]}
    ask(lab, wanted, "tpch-large", list(how["large_databases"]), how["large_scale"])


def ask(lab, how, table, disks, scale):
    """The queries on each disk, database and set-up."""
    texts = queries_of(HERE / "tpch.sql")
    for disk in lab.disks(*disks):
        for kind in databases_on(lab, disk, how):
            answers = {}
            for setup in lab.setups(*how["database_setups"]):
                with place_of(lab, disk, setup, kind, how) as place, kind(place, how["db_memory"]) as database:
                    loaded(lab, database, scale)
                    for cpus in reversed(how["cpus"]):
                        place.hold_to(cpus)
                        database.cold()
                        for name, text in texts.items() if cpus == how["cpus"][-1] else [("Q3", texts["Q3"])]:
                            with place.meter() as meter:
                                answer = database.sql(use(database) + text)
                            # The same question, the same answer: whatever the set-up.
                            if answers.setdefault(name, answer) != answer:
                                raise SystemExit(f"{kind.name} answers {name} differently on {setup.name}: the data below has changed")
                            lab.report.row(table, disk=disk.name, database=kind.name, setup=setup.name, cpus=cpus, query=name, saving_percent=saving(place), **meter.figures())


# Of native's speed: all queries with eight disks, figure 7, and Q3 with one CPU, figure 8.
TPCH_ALL, TPCH_Q3 = {"lzo": 0.89, "zlib": 0.85}, {"lzo": 0.87, "zlib": 0.33}


def show_queries(lab, how):
    """Figures 7 and 8."""
    show_asked(lab, "tpch", "TPC-H (figures 7 and 8)")


def show_queries_large(lab, how):
    """Figures 7 and 8, larger."""
    show_asked(lab, "tpch-large", "TPC-H larger than the memory (figures 7 and 8)")


def show_asked(lab, table, title):
    """Seconds of each query, all together and Q3 relative to native."""
    report = lab.report
    report.heading(title)
    for disk in disks_of(report, table):
        for kind in DATABASES:
            every = report.select(table, disk=disk, database=kind.name)
            if not every:
                continue
            cpus = max(r["cpus"] for r in every)
            rows = [r for r in every if r["cpus"] == cpus]
            names, queries_run = (list(dict.fromkeys(r[field] for r in rows)) for field in ("setup", "query"))
            of = {"disk": disk, "database": kind.name}
            total = {n: sum(r["seconds"] for r in rows if r["setup"] == n) for n in names}
            report.bars(f"{table}-{disk}-{kind.name}", f"TPC-H: seconds of each query, {kind.name}, {disk}", queries_run, names,
                        lambda query, name, of=of, cpus=cpus: report.values(table, "seconds", **of, setup=name, query=query, cpus=cpus), "seconds", rising=True,
                        said="Theirs: figure 7; of single queries its text has the worst only: 33 % slower with lzo, 38 % with zlib.")
            if "native" in names:
                report.bars(f"{table}-{disk}-{kind.name}-all", f"TPC-H: speed, of native's, {kind.name}, {disk}", ["all queries", *[f"Q3, {c} CPU{'s' if c > 1 else ''}" for c in sorted({r["cpus"] for r in every})]], names,
                            lambda group, name, of=of, total=total: [total["native"] / total[name]] if group == "all queries" else faster(report, table, of | {"query": "Q3", "cpus": int(group.split()[1])}, name),
                            "of native", theirs=lambda group, name: (TPCH_ALL if group == "all queries" else TPCH_Q3 if group == "Q3, 1 CPU" else {}).get(name),
                            said=f"Theirs: figures 7 and 8, by the text: all queries 11 and 15 % slower, Q3 with one CPU 13 and 67 % less performance; eight disks. {disk}: {DISKS[disk].title}.")
            report.table([f"set-up, {kind.name}, {disk}", "all queries, s", "native's time of it", "CPU, % of one (mean)", "saved, %", "disk read, MB"],
                         [[n, total[n], round(total["native"] / total[n], 2) if "native" in total else None, mean([r["cpu_percent"] for r in rows if r["setup"] == n]),
                           next((r.get("saving_percent") for r in rows if r["setup"] == n), None), round(sum(r["disk_read_bytes"] for r in rows if r["setup"] == n) / 1e6)] for n in names])


def faster(report, table, of, name):
    """Native's seconds of those of a set-up."""
    native = middle(report.values(table, "seconds", setup="native", **of))
    return [native / value for value in report.values(table, "seconds", setup=name, **of)] if native else []


def locality(lab, how):
    """Figure 9: where on the disk TPC-H's Q3 reads, natively and with zlib."""
    if not Reads.possible():
        lab.report.note("This kernel has no tracepoint of block requests (block_bio_queue): figure 9 is left out.")
        return
    text = queries_of(HERE / "tpch.sql")["Q3"]
    for disk in lab.disks("file"):
        for setup in lab.setups("native", "zlib"):
            with place_of(lab, disk, setup, PostgreSQL, how) as place, PostgreSQL(place, how["db_memory"]) as database:
                loaded(lab, database, how["scale"])
                database.cold()
                with Reads(disk) as reads:
                    database.sql(text)
                for number, (at, length) in enumerate(reads.offsets):
                    lab.report.row("locality", setup=setup.name, number=number, offset=at, bytes=length)
                at = [offset for offset, _ in reads.offsets]
                if at:
                    seeks = [abs(b - a) for a, b in zip(at, at[1:])]
                    lab.report.row("zones", setup=setup.name, reads=len(at), zone_mb=round((max(at) - min(at)) / 1e6, 1), read_mb=round(sum(s for _, s in reads.offsets) / 1e6, 1),
                                   mean_distance_mb=round(mean(seeks) / 1e6, 2) if seeks else None)


# MB of the zone in which theirs read, figure 9.
ZONES = {"native": 6500, "zlib": 4000}


def show_locality(lab, how):
    """Figure 9."""
    report = lab.report
    report.heading("Where reads land (figure 9)")
    rows = report.select("zones")
    report.lines("locality", "reads of TPC-H's Q3", {r["setup"]: [(at["number"], at["offset"] / 1e6) for at in report.select("locality", setup=r["setup"])] for r in rows}, "read",
                 "MB from the beginning of the disk", points=True, said="Theirs: figure 9; its text has the widths of the zones, beside.")
    report.bars("zones", "width of the zone in which Q3 reads", [r["setup"] for r in rows], ["ours"], lambda name, _: report.values("zones", "zone_mb", setup=name), "MB",
                theirs=lambda name, _: ZONES.get(name), said="Theirs: figure 9, by its text: 6.5 and 4 GB, of a database 20 times as large; it names no codec.")
    report.table(["set-up", "reads", "zone, MB", "read, MB", "mean distance, MB"], [list(r.values()) for r in rows])
