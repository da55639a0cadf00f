"""Compression by file in shares, on live mounts: rules, attributes, properties, and what explain and usage tell of it."""

import errno
import json
import os
import sqlite3

from harness import EXIT, Pool, test
from harness.pool import BINARY

NAME = "user.shale.compression"


def lines(count=12000):
    """Text of which every codec saves something, and no two lines are the same."""
    return "".join(f"static int value_{n} = {n * 7919}; /* of {n} */\n" for n in range(count)).encode()


def explained(pool, share, path):
    return json.loads(pool.shale("explain", share, path, "--json").stdout)


def codecs(pool, share, path):
    """The codecs of a file's parts."""
    return [part["codec"] for part in explained(pool, share, path)["parts"]]


def only(t, pool, share, path, codec, what):
    t.equal(codecs(pool, share, path), [codec], f"{what}: codecs of {path} in {share}")


@test(seconds_max=600)
def shares_inherit_compression(t):
    """table 3.1 of the thesis: pool lz4, archive gzip, media off, home and home/meier inherited; and a change of it online, without another mount"""
    pool = Pool(t)
    pool.shale("set", "compression=lz4")
    pool.shale("create", "archive", "--share", "-o", "compression=gzip-6")
    pool.shale("create", "media", "--share", "-o", "compression=off")
    pool.shale("create", "home", "--folder")
    pool.shale("create", "home/all", "--share")
    pool.shale("create", "home/meier", "--share")
    server = pool.serve(shares=True)
    where = {name: json.loads(pool.shale("get", name, "compression", "--json").stdout)[0]["source"] for name in ["archive", "home/all"]}
    t.equal(where, {"archive": "share", "home/all": "pool"}, "where a property is from")
    expected = {"archive": "gzip-6", "media": "raw", "home/all": "lz4", "home/meier": "lz4"}
    for share, codec in expected.items():
        for name in ["text.c", "photo.jpg", "none"]:
            (server.share(share) / name).write_bytes(lines())
            only(t, pool, share, name, codec, "table 3.1")
    # In the middle of writing, by one name and then by another.
    early, late = server.share("home/meier") / "early", server.share("home/meier") / "late"
    with open(early, "wb") as file:
        file.write(lines()[:128 << 10])
        file.flush()
        only(t, pool, "home/meier", "early", "lz4", "before the property changes")
        os.link(early, late)
        pool.shale("set", "home", "compression=zstd-3")
        with open(late, "ab") as again:
            again.write(lines()[128 << 10:256 << 10])
        t.equal(codecs(pool, "home/meier", "early"), ["lz4", "zstd-3"], "before and behind a change of the property, by two names")
    for share, codec in {**expected, "home/all": "zstd-3", "home/meier": "zstd-3"}.items():
        (server.share(share) / "later").write_bytes(lines())
        only(t, pool, share, "later", codec, "after the folder's property changed")
    server.stop()
    pool.check()


@test(seconds_max=600)
def shares_compress_by_rule_and_mode(t):
    """table 3.4 and figure 3.1 of the thesis on a mount: a known extension goes by its rule and the mode, all else is tested, with compression off as with auto"""
    pool = Pool(t)
    for rule in ["txt=archive:gzip-6,energy:gzip-1,performance:lz4", "log=archive:gzip-9,energy:gzip-6,performance:gzip-1",
                 "nc=archive:gzip-1,energy:lz4,performance:lz4", "gz=off"]:
        pool.shale("set", f"rule.{rule}")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = server.share("home")
    table = {"archive": ["gzip-6", "gzip-9", "gzip-1", "raw"], "energy": ["gzip-1", "gzip-6", "lz4", "raw"],
             "performance": ["lz4", "gzip-1", "lz4", "raw"]}
    odd = b"\x01\x02\x03\0" + lines()
    for compression in ["off", "auto"]:
        for mode, row in table.items():
            pool.shale("set", "home", f"compression={compression}", f"mode={mode}")
            what = f"compression={compression} mode={mode}"
            for end, codec in zip(["txt", "log", "nc", "gz"], row):
                (share / f"{compression}-{mode}.{end}").write_bytes(lines())
                only(t, pool, "home", f"{compression}-{mode}.{end}", codec, what)
            (share / f"{compression}-{mode}.unheard").write_bytes(odd)
            report = explained(pool, "home", f"{compression}-{mode}.unheard")
            t.expect(report["stored_bytes"] * 2 < report["raw_bytes"], f"{what}: what no rule knows is tested: {report}")
            (share / f"{compression}-{mode}.noise").write_bytes(b"\x01\x02\x03\0" + os.urandom((200 << 10) - 4))
            only(t, pool, "home", f"{compression}-{mode}.noise", "raw", what)
    # The name of a netCDF file says nothing: its first bytes do.
    (share / "noname").write_bytes(b"CDF\x01" + lines())
    report = explained(pool, "home", "noname")
    t.equal((report["file_type"], report["parts"][0]["codec"]), ("nc", "lz4"), "by the first bytes")
    t.expect("by its first bytes" in report["compression"], f"where that comes from: {report}")
    server.stop()
    pool.check()


@test(seconds_max=600)
def shares_of_databases_have_a_rule_set(t):
    """rule-set=database, at create and by set: a log written by SQLite itself and the names of other databases' logs get lz4, tables the share's codec; explain names the set"""
    pool = Pool(t)
    pool.shale("create", "db", "--share", "-o", "compression=zstd-6", "-o", "rule-set=database")
    t.expect("rule-set" in pool.shale("set", "--help").stdout, "help of set names the property")
    known = json.loads(pool.shale("get", "db", "rule-set", "--json").stdout)[0]
    t.equal((known["value"], known["source"], known["rules"]["redo"]), ("database", "share", "lz4"), "what get says of it")
    server = pool.serve(shares=True)
    share = server.share("db")
    (share / "pg_wal").mkdir()
    (share / "pg_wal" / "xlogtemp.71").write_bytes(lines())
    os.rename(share / "pg_wal" / "xlogtemp.71", share / "pg_wal" / "000000010000000000000001")
    for path, codec in {"pg_wal/000000010000000000000001": "lz4", "ib_logfile0": "lz4", "mysql-bin.000001": "lz4", "stock.ibd": "zstd-6"}.items():
        if not (share / path).exists():
            (share / path).write_bytes(lines())
        only(t, pool, "db", path, codec, "rule-set=database")
    t.equal(explained(pool, "db", "ib_logfile0")["compression"], "lz4 (rule for redo of rule set database, by its name)", "explain names the set")
    # Two connections keep the log from being merged and removed.
    database, other = [sqlite3.connect(share / "app.db") for _ in range(2)]
    database.execute("pragma journal_mode=wal")
    database.execute("pragma wal_autocheckpoint=0")
    database.execute("create table t (line text)")
    database.executemany("insert into t values (?)", [(line,) for line in lines(4000).decode().splitlines()])
    database.commit()
    t.equal(other.execute("select count(*) from t").fetchone(), (4000,), "rows seen by the other connection")
    only(t, pool, "db", "app.db-wal", "lz4", "SQLite's log")
    database.execute("pragma wal_checkpoint(truncate)")
    only(t, pool, "db", "app.db", "zstd-6", "SQLite's tables")
    database.close()
    other.close()
    pool.shale("set", "db", "rule-set=none")
    (share / "ib_logfile1").write_bytes(lines())
    only(t, pool, "db", "ib_logfile1", "zstd-6", "rule-set=none")
    t.expect("database" in pool.shale("set", "db", "rule-set=databases", status=EXIT["usage"]).stderr, "a wrong value lists the sets")
    server.stop()
    pool.check()


@test(seconds_max=600)
def shares_take_codecs_for_files(t):
    """setfattr and chattr on files and directories: read back, inherited, kept by rename, link, kill -9 and a snapshot; a wrong value is refused"""
    pool = Pool(t)
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True, keeps=True)
    share = server.share("home")
    (share / "old").mkdir()
    t.run("setfattr", "-n", NAME, "-v", "gzip-9", share / "old")
    (share / "old" / "deep").mkdir()
    file = share / "old" / "deep" / "a.c"
    file.write_bytes(lines())
    only(t, pool, "home", "old/deep/a.c", "gzip-9", "inherited from a directory")
    t.equal(os.getxattr(file, NAME), b"gzip-9 (inherited from its directory)", "what is read back")
    t.equal(os.listxattr(file), [], "what is inherited is not listed")
    t.equal(os.listxattr(share / "old"), [NAME], "what is set is listed")

    other = share / "b.c"
    other.write_bytes(lines()[:128 << 10])
    t.run("sync", other)
    os.rename(other, share / "b.jpg")
    os.setxattr(share / "b.jpg", NAME, b"lz4hc-9")
    with open(share / "b.jpg", "r+b") as opened:
        opened.seek(128 << 10)
        opened.write(lines()[128 << 10:256 << 10])
    t.equal(codecs(pool, "home", "b.jpg"), ["zstd-3", "lz4hc-9"], "before and behind a change in the middle of writing")
    os.link(share / "b.jpg", share / "third name")
    server.kill(leaves_mount=True)
    server = pool.serve(shares=True, keeps=True)
    t.equal(os.getxattr(share / "third name", NAME), b"lz4hc-9 (set here)", "after kill -9, by another name")
    for wrong in [b"lz5", b"archive", b"zstd-77"]:
        try:
            os.setxattr(share / "b.jpg", NAME, wrong)
            t.fail(f"{wrong} was taken")
        except OSError as error:
            t.log(f"refused as it must be: {error}")
    os.removexattr(share / "b.jpg", NAME)
    t.equal(os.getxattr(share / "b.jpg", NAME), b"zstd-3 (default rule for c, by its name)", "what the rule said when it was made")

    pool.shale("set", "home", "compression=off")
    plain = share / "plain"
    plain.write_bytes(lines())
    only(t, pool, "home", "plain", "raw", "compression=off")
    t.run("chattr", "+c", plain)
    t.expect("c" in t.out("lsattr", plain).split()[0], "lsattr shows c")
    plain.write_bytes(lines())
    t.expect("raw" not in codecs(pool, "home", "plain"), "chattr +c compresses")
    t.run("chattr", "-c", plain)
    t.equal(os.getxattr(plain, NAME), b"off (properties of the share)", "after chattr -c")
    t.run("chattr", "+m", file)
    file.write_bytes(lines())
    only(t, pool, "home", "old/deep/a.c", "raw", "chattr +m")
    pool.shale("snapshot", "home@then")
    moment = share / ".shale" / "snapshots" / "then" / "old" / "deep" / "a.c"
    t.equal(os.getxattr(moment, NAME), b"off (set here)", "in a snapshot")
    only(t, pool, "home@then", "old/deep/a.c", "raw", "in a snapshot")
    server.stop()
    pool.check()


@test(seconds_max=600)
def shares_tell_what_files_take(t):
    """explain, usage and recompress by path, served and not: figures add up, a new rule makes one directory smaller and no other, snapshots stay shared"""
    pool = Pool(t)
    pool.shale("create", "home", "--share", "-o", "compression=lz4")
    server = pool.serve(shares=True)
    share = server.share("home")
    for directory in ["src", "pictures"]:
        (share / directory).mkdir()
        for number in range(20):
            (share / directory / f"{number}.c").write_bytes(lines(500 + 100 * number))
            (share / directory / f"{number}.jpg").write_bytes(os.urandom(30 << 10))
    (share / "large.c").write_bytes(lines() * 20)
    os.link(share / "src" / "3.c", share / "src" / "again.c")
    t.run("sync", share)
    report = json.loads(pool.shale("usage", "home", "--json").stdout)
    t.equal([line["name"] for line in report["entries"]][0], "large.c", "the most bytes first")
    t.equal({line["name"] for line in report["entries"]}, {"src/", "pictures/", "large.c"}, "names")
    for field in ["files", "size_bytes", "raw_bytes", "stored_bytes"]:
        for part in ["entries", "types"]:
            t.equal(sum(line[field] for line in report[part]), report["total"][field], f"{field} of {part} add up")
    t.equal(report["total"]["files"], 81, "a file with two names counts once")
    types = {line["name"]: line for line in report["types"]}
    t.expect(types["jpg"]["ratio"] < 1.05 < 1.5 < types["c"]["ratio"], f"ratio by type: {types}")
    told = dict(word.split("=") for word in os.getxattr(share, "user.shale.usage").decode().split())
    t.equal([int(told[name]) for name in ["files", "size", "data", "stored"]],
            [report["total"][name] for name in ["files", "size_bytes", "raw_bytes", "stored_bytes"]], "user.shale.usage of the root")
    text = pool.shale("usage", "home", "src").stdout
    t.expect("20.c" not in text and "19.c" in text and "TYPE" in text, f"as a table: {text}")

    before = {d: json.loads(pool.shale("usage", "home", d, "--json").stdout)["total"]["stored_bytes"] for d in ["src", "pictures"]}
    pool.shale("snapshot", "home@then")
    pool.shale("set", "home", "rule.c=zstd-9")
    done = json.loads(pool.shale("recompress", "home", "src", "--json").stdout)
    t.expect(done["finished"] and done["rewritten"] > 10 and done["after_bytes"] < done["before_bytes"], f"recompressed: {done}")
    after = {d: json.loads(pool.shale("usage", "home", d, "--json").stdout)["total"]["stored_bytes"] for d in before}
    t.expect(after["src"] < 0.9 * before["src"], f"src from {before} to {after}")
    t.equal(after["pictures"], before["pictures"], "the directory beside it")
    only(t, pool, "home", "src/9.c", "zstd-9", "by the new rule")
    only(t, pool, "home@then", "src/9.c", "zstd-9", "the snapshot shares it")
    only(t, pool, "home", "pictures/9.c", "lz4", "not asked for")
    with open(share / "src" / "9.c", "r+b") as file:
        file.write(lines(500))
    only(t, pool, "home", "src/9.c", "zstd-9", "later data follows")
    # A name that is no text is found as it is told.
    with open(os.path.join(os.fsencode(share), b"L\xfc.c"), "wb") as file:
        file.write(lines(500))
    only(t, pool, "home", "L\\xfc.c", "zstd-9", "whose name is no text")
    why = explained(pool, "home", "src/9.c")
    t.expect(why["parts"][0]["why"] and "rule for c, by its name" in why["compression"], f"why: {why}")
    would = {other["codec"]: other["stored_bytes"] for other in why["trials"]["others"]}
    t.expect(would["zstd-9"] < would["lz4"] < why["trials"]["raw_bytes"], f"what other codecs would take: {why['trials']}")
    t.expect("zstd-19" in pool.shale("explain", "home", "src/9.c").stdout, "other codecs are not told in words")

    # A small file is in its inode's record, until it is longer; the snapshot keeps it as it was.
    tiny = share / "src" / "tiny.c"
    tiny.write_bytes(b"x" * 512)
    only(t, pool, "home", "src/tiny.c", "inode", "a small file")
    t.expect("in its inode" in explained(pool, "home", "src/tiny.c")["parts"][0]["why"], "a small file is not explained")
    pool.shale("snapshot", "home@small")
    with open(tiny, "ab") as file:
        file.write(b"y" * 5000)
    only(t, pool, "home", "src/tiny.c", "zstd-9", "a file that has grown")
    t.equal((share / ".shale/snapshots/small/src/tiny.c").read_bytes(), b"x" * 512, "a small file in a snapshot")
    (share / "src" / "least.c").write_bytes(b"int one;\n")
    digest = {path: path.read_bytes() for path in share.rglob("*.c")}
    what_if = {}
    for codec in ["lz4", "gzip-9"]:
        report = json.loads(pool.shale("estimate", "home", "src", "-o", "compression=auto", "-o", f"rule.c={codec}", "--json").stdout)
        t.expect(report["files"] in (42, 43), f"files of the directory: {report}")
        what_if[codec] = next(line["stored_bytes"] for line in report["settings"] if line["configured"])
    t.expect(what_if["gzip-9"] < 0.9 * what_if["lz4"], f"what-if: {what_if}")
    server.stop()

    # Not served: the command opens the pool itself.
    t.equal(json.loads(pool.shale("estimate", "home", "src", "--codecs", "none", "--json").stdout)["files"], report["files"], "files without a server")
    only(t, pool, "home", "large.c", "lz4", "not served")
    done = json.loads(pool.shale("recompress", "home", "--json").stdout)
    t.expect(done["finished"] and done["rewritten"] > 20, f"all of the share: {done}")
    only(t, pool, "home", "large.c", "zstd-9", "recompressed")
    pool.shale("explain", "home", "nothing/here", status=EXIT["not-found"])
    pool.shale("explain", "home", "src/" + 300 * "x", status=EXIT["not-found"])
    pool.shale("recompress", "home", "nothing/here", status=EXIT["not-found"])
    pool.check()
    server = pool.serve(shares=True)
    share = server.share("home")
    for path, content in digest.items():
        t.equal((share / path.relative_to(server.share("home"))).read_bytes(), content, f"{path}")
    server.stop()


@test(seconds_max=300)
def estimate_tells_the_types_of_usage(t):
    """a directory of wrong extensions: shale estimate tells the types, files and bytes that shale usage tells of it in a share, imported or copied, whatever the properties"""
    tree = t.dir / "tree"
    tree.mkdir()
    gz, jpg, elf, zipped = b"\x1f\x8b\x08\0", b"\xff\xd8\xff\xe0", b"\x7fELF\x02\x01\x01\0", b"PK\x03\x04"
    text, noise = lines(400), os.urandom(9000)
    files = {"x.bin": gz + noise, "photo.txt": jpg + noise, "letter.jpg": text, "README": text, "a.docx": zipped + noise, "dump.sql": gz + noise,
             "program": elf + noise, "lib.so.6": elf + noise, "odd.unheard": text, "odd.noise": b"\1\2\3\0" + noise, "UPPER.PNG": noise, ".profile": text,
             "of.seventeen_letters": gz + noise, "none": b"\1\2\3\0" + noise, "zeroes.bin": bytes(9000), "empty.c": b"", "empty": b"",
             "tiny.bin": gz, "tiny": b"text\n", "least.c": b"int one;\n", "page.html": text, "x.tgz": noise, "x.nc": jpg + noise}
    for name, content in files.items():
        (tree / name).write_bytes(content)

    def types(report, key):
        """Files and bytes by type."""
        names = {"other": "-"}
        return {names.get(line[key], line[key]): (line["files"], line["size_bytes"]) for line in report["types"]}

    pool = Pool(t, capacity="256M")
    for number, properties in enumerate([[], ["compression=lz4"], ["compression=lz4", "rule.gz=off"], ["rule.docx=zstd-9", "rule.jpg=off", "mode=archive"],
                                         ["compression=off", "mode=energy"]]):
        words = [word for pair in properties for word in ("-o", pair)]
        estimated = types(json.loads(t.run(BINARY, "estimate", tree, *words, "--codecs", "none", "--json").stdout), "type")
        t.equal(sum(files for files, _ in estimated.values()), len(files), "files in the estimate")
        pool.shale("import", f"imported{number}", tree, *words)
        used = types(json.loads(pool.shale("usage", f"imported{number}", "--json").stdout), "name")
        t.equal(estimated, used, f"types with {properties}, imported")
        if not properties:
            t.expect({"gz", "elf", "-", "sql"} <= set(used), f"types that the test is about: {sorted(used)}")
        pool.shale("create", f"copied{number}", "--share", *words)
    server = pool.serve(shares=True)
    for number in range(5):
        share = server.share(f"copied{number}")
        for name, content in files.items():
            (share / name).write_bytes(content)
        used = types(json.loads(pool.shale("usage", f"copied{number}", "--json").stdout), "name")
        there = types(json.loads(pool.shale("estimate", f"copied{number}", "--codecs", "none", "--json").stdout), "type")
        t.equal(there, used, f"types of the share copied{number}")
        imported = types(json.loads(pool.shale("usage", f"imported{number}", "--json").stdout), "name")
        t.equal(imported, used, f"types of copied{number} and imported{number}")
    server.stop()
    pool.check()


@test(seconds_max=300)
def explain_tells_what_is_in_force(t):
    """explain of a file that was made under another rule, value or property tells what is in force beside what counts for it, and how much of it is stored otherwise"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "home", "--share", "-o", "rule.c=lz4")
    server = pool.serve(shares=True)
    share = server.share("home")
    half = len(lines()) // 2 // (128 << 10) * (128 << 10)

    def told(path, in_force, earlier):
        """Checks the report, which is returned, and that its text tells the same."""
        report = explained(pool, "home", path)
        t.equal(report["in_force"], in_force, f"what is in force for {path}")
        t.equal([part["codec"] for part in report["parts"] if part["earlier"]], earlier, f"what of {path} is stored otherwise")
        head = pool.shale("explain", "home", path).stdout.split("OFFSET")[0]
        words = " ".join(head.split())
        t.equal("in force " + str(in_force) in words, in_force is not None, f"what is in force in {head}")
        t.equal("earlier " in words, earlier != [], f"what is stored otherwise in {head}")
        return report

    file = share / "a.c"
    file.write_bytes(lines()[:half])
    t.run("sync", file)
    told("a.c", None, [])
    pool.shale("set", "home", "rule.c=zstd-9")
    report = told("a.c", "zstd-9 (rule for c, by its name)", ["lz4"])
    t.equal(report["compression"], "lz4 (rule for c, by its name)", "what counts for a file that is there")
    (share / "b.c").write_bytes(lines())
    told("b.c", None, [])
    # A value counts before all rules, from now on.
    os.setxattr(file, NAME, b"lzo")
    with open(file, "ab") as opened:
        opened.write(lines()[half:])
    told("a.c", None, ["lz4"])
    t.equal(codecs(pool, "home", "a.c"), ["lz4", "lzo"], "before and behind the value")
    os.removexattr(file, NAME)
    told("a.c", "zstd-9 (rule for c, by its name)", ["lz4", "lzo"])
    pool.shale("recompress", "home")
    report = told("a.c", None, [])
    t.equal([part["codec"] for part in report["parts"]], ["zstd-9"], "looked up again")
    server.stop()

    # Not served, and by the property alone.
    pool.shale("create", "plain", "--share", "-o", "compression=lz4")
    (t.dir / "tree").mkdir()
    (t.dir / "tree" / "a.c").write_bytes(lines())
    pool.shale("import", "plain", t.dir / "tree")
    pool.shale("set", "plain", "compression=zstd-3")
    report = explained(pool, "plain", "a.c")
    t.equal((report["compression"], report["in_force"]), ("zstd-3 (properties of the share)", None), "by the property")
    t.equal([(part["codec"], part["earlier"]) for part in report["parts"]], [("lz4", True)], "stored by the property before")
    pool.check()


@test(seconds_max=120)
def wrong_names_of_attributes_are_logged_once(t):
    """a misspelt user.shale.* attribute is refused, and the server's log says once what was set where, and what can be set"""
    pool = Pool(t, capacity="256M")
    pool.shale("create", "home", "--share")
    server = pool.serve(shares=True)
    share = server.share("home")
    file = share / "a"
    file.write_bytes(lines(100))
    for name in ["user.shale.compresion", "user.shale.compresion", "user.shale.mode"]:
        try:
            os.setxattr(file, name, b"zstd-9")
            t.fail(f"{name} can be set")
        except OSError as error:
            t.equal(error.errno, errno.EINVAL, f"setting {name}")
    inode = file.stat().st_ino
    server.stop()
    # The server's messages go where this test's go.
    with open("/proc/self/fd/2", encoding="utf-8") as log:
        said = [line for line in log if "refused the unknown attribute" in line]
    t.equal(len(said), 2, f"lines of the server's log: {said}")
    for line, name in zip(said, ["user.shale.compresion", "user.shale.mode"]):
        for part in [f"inode {inode} ", f"'{name}'", NAME, "user.shale.usage"]:
            t.expect(part in line, f"{part} is not in: {line}")
