"""A browser's profile of public web pages, laid out as Firefox does it: its cache without names, its databases, its extensions."""

import gzip
import hashlib
import json
import random
import shutil
import sqlite3
import zipfile

# What a server sends compressed, and a browser keeps so.
TEXT = (".html", ".js", ".css", ".svg", ".json", ".txt", ".php", ".map")
DAY_US = 86_400_000_000


def cache(target, pages, limit, chance):
    """Entries under the hash of their address: text compressed as it came in half of the cases, pictures as they are."""
    entries = target / "cache2" / "entries"
    entries.mkdir(parents=True)
    written, addresses = 0, []
    for page in chance.sample(pages, len(pages)):
        content = page.read_bytes()
        if written + len(content) > limit:
            continue
        address = f"https://www.example.org/{page.parent.name}/{page.name}"
        if page.name.lower().endswith(TEXT) and chance.random() < 0.5:
            content = gzip.compress(content, 6, mtime=0)
        tail = f"\0\0\0\3response-head\0HTTP/2 200 OK\r\nserver: Apache\r\ncontent-length: {len(content)}\r\netag: \"{chance.getrandbits(64):x}\"\r\n\0{address}"
        (entries / hashlib.sha1(address.encode()).hexdigest().upper()).write_bytes(content + tail.encode())
        addresses.append(address)
        written += len(content)
    return addresses


def history(target, addresses, chance):
    """The places and cookies of someone who was at these addresses."""
    with sqlite3.connect(target / "places.sqlite") as places:
        places.execute("PRAGMA page_size = 32768")
        places.execute("CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url TEXT, title TEXT, rev_host TEXT, visit_count INTEGER, frecency INTEGER, last_visit_date INTEGER, guid TEXT)")
        places.execute("CREATE TABLE moz_historyvisits (id INTEGER PRIMARY KEY, from_visit INTEGER, place_id INTEGER, visit_date INTEGER, visit_type INTEGER)")
        places.executemany("INSERT INTO moz_places VALUES (?, ?, ?, 'gro.elpmaxe.www.', ?, ?, ?, ?)",
                           [(n, a, a.rsplit("/", 1)[1].replace("-", " "), chance.randrange(1, 40), chance.randrange(20_000), chance.randrange(30 * DAY_US),
                             f"{chance.getrandbits(72):018x}"[:12]) for n, a in enumerate(addresses)])
        places.executemany("INSERT INTO moz_historyvisits VALUES (?, ?, ?, ?, ?)",
                           [(n, max(n - 1, 0), chance.randrange(max(len(addresses), 1)), n * 60_000_000 + chance.randrange(60_000_000), 1) for n in range(8 * len(addresses))])
        places.execute("CREATE INDEX moz_places_url ON moz_places (url)")
    with sqlite3.connect(target / "cookies.sqlite") as cookies:
        cookies.execute("CREATE TABLE moz_cookies (id INTEGER PRIMARY KEY, name TEXT, value TEXT, host TEXT, path TEXT, expiry INTEGER)")
        cookies.executemany("INSERT INTO moz_cookies VALUES (?, ?, ?, ?, '/', ?)",
                            [(n, chance.choice(["session", "_ga", "consent", "csrftoken"]), f"{chance.getrandbits(160):040x}", f".site{chance.randrange(200)}.example.org",
                              chance.randrange(2_000_000_000)) for n in range(2 * len(addresses))])


def profile(target, pages, limit):
    """Fills a directory; the same pages give the same profile."""
    chance = random.Random(2015)
    target.mkdir(parents=True, exist_ok=True)
    addresses = cache(target, pages, limit * 3 // 4, chance)
    history(target, addresses, chance)
    (target / "prefs.js").write_text("".join(f'user_pref("browser.setting.{n}.{chance.getrandbits(24):x}", {chance.randrange(1000)});\n' for n in range(400)), encoding="ascii")
    session = {"windows": [{"tabs": [{"entries": [{"url": a, "title": a.rsplit("/", 1)[1], "ID": chance.getrandbits(32)}]} for a in addresses[:200]]}]}
    (target / "sessionstore.json").write_text(json.dumps(session), encoding="ascii")
    (target / "extensions").mkdir()
    scripts = [p for p in pages if p.name.endswith(".js")][:60]
    with zipfile.ZipFile(target / "extensions" / "addon@example.org.xpi", "w", zipfile.ZIP_DEFLATED) as addon:
        for number, script in enumerate(scripts):
            if script.stat().st_size < limit // 8:
                addon.write(script, f"{number}/{script.name}")
    for picture in [p for p in pages if p.name.lower().endswith((".png", ".ico", ".woff2"))][:40]:
        (target / "storage").mkdir(exist_ok=True)
        if picture.stat().st_size < limit // 16:
            shutil.copyfile(picture, target / "storage" / f"{hashlib.sha1(str(picture.name).encode()).hexdigest()[:16]}.final")
