"""PostgreSQL and MariaDB on a directory, with their protection from torn pages switched off, and clients that know which of their transactions were
acknowledged. Owns the spelling of the servers' command lines and of the statements; the tests own what is killed, and when."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

# A server that does not answer by then never will: recovery on an overloaded machine included.
START_SECONDS_MAX = 300
STOP_SECONDS_MAX = 300
# Rows of each client, and how often a row repeats a digest. Tables many times as large as the database's own cache, so that pages are
# written out all the time.
ROWS, REPEATED, CLIENTS = 5000, 20, 3


class Database:
    """A server on a directory. Subclasses have the spelling."""

    def __init__(self, t, directory, name):
        self.t, self.data = t, Path(directory) / "data"
        # Its socket, in a directory with a short path.
        self.run_directory = t.dir / name
        self.run_directory.mkdir(exist_ok=True)
        shutil.chown(self.run_directory, self.user, self.user)
        self.log = t.dir / f"{name}.log"
        self.server = None
        t.defer(self.kill)

    def make(self):
        """An empty database."""
        self.data.mkdir()
        shutil.chown(self.data, self.user, self.user)
        self._make()

    def start(self):
        """Starts it, recovery included, and returns when it answers."""
        with open(self.log, "ab") as log:
            words = [str(word) for word in self._command()]
            self.t.log(f"$ {' '.join(words)} &")
            self.server = subprocess.Popen(words, user=self.user, group=self.user, extra_groups=[], cwd=self.run_directory,
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def answers():
            if self.server.poll() is not None:
                self.t.fail(f"{self.name} ended with {self.server.returncode}: {self.said()}")
            return subprocess.run([str(word) for word in self._ping()], capture_output=True, check=False).returncode == 0

        self.t.wait_for(answers, f"an answer of {self.name}", START_SECONDS_MAX)

    def said(self):
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self):
        """Stops it in order, so that all pages are written."""
        self.server.send_signal(self.stop_signal)
        self.t.equal(self.server.wait(STOP_SECONDS_MAX), 0, f"exit status of {self.name}")
        self.server = None

    def kill(self):
        """The guard."""
        if self.server and self.server.poll() is None:
            self.server.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(STOP_SECONDS_MAX)

    def client(self, **pipes):
        """A client that takes statements from a pipe."""
        return subprocess.Popen([str(word) for word in self._client()], text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **pipes)

    def sql(self, text):
        """Runs statements, and returns their lines."""
        done = self.t.run(*self._client(), stdin=text, quiet=True)
        return done.stdout.splitlines()

    def fill(self):
        """The table of the clients. Each row has its version, and content that follows from both."""
        self.sql("create table records (id int primary key, version int not null, content text not null);")
        for client in range(CLIENTS):
            for first in range(client * ROWS, (client + 1) * ROWS, 500):
                rows = (f"({row}, 0, {self.content_of(row, 0)})" for row in range(first, first + 500))
                self.sql(f"insert into records values {', '.join(rows)};")
        self.sql("create index versions on records (version, id);")

    @staticmethod
    def content_by(key):
        """The content of a row by its key, as an expression of SQL."""
        return f"repeat(md5({key}), {REPEATED})"

    def content_of(self, row, version):
        """The content of a row with a version, as an expression of SQL."""
        return self.content_by(f"'{row}:{version}'")

    def verify(self, oldest, newest):
        """Each row has a version of these, and its content; the server's own checks find nothing. It is stopped by that."""
        bad = self.sql(f"select id, version from records where content <> {self.content_by(self.key)};")
        self.t.equal(bad, [], f"rows of {self.name} with other content than their version's")
        found = dict(map(int, line.replace("\t", "|").split("|")) for line in self.sql("select id, version from records;"))
        self.t.equal(len(found), CLIENTS * ROWS, f"rows of {self.name}")
        for row, version in found.items():
            low, high = oldest.get(row, 0), newest.get(row, 0)
            self.t.expect(low <= version <= high, f"row {row} of {self.name} has version {version}: {low} was acknowledged, {high} the newest")
        self.inspect()
        self.stop()
        self.checksums()


class PostgreSQL(Database):
    """PostgreSQL, with checksums of pages and without full-page writes."""
    name, user, stop_signal, page, key = "postgresql", "postgres", signal.SIGINT, "8K", "id || ':' || version"

    @staticmethod
    def found():
        """Its programs, if it is installed."""
        return next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)

    def _make(self):
        command = [self.found() / "initdb", "-D", self.data, "--data-checksums", "--auth=trust", "--no-instructions", "--no-locale", "--encoding=UTF8", "-U", "postgres"]
        self.t.run("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command, cwd=self.run_directory)

    def _command(self):
        settings = {"listen_addresses": "", "unix_socket_directories": self.run_directory, "full_page_writes": "off", "shared_buffers": "1MB", "max_wal_size": "32MB", "checkpoint_timeout": "30s",
                    "checkpoint_completion_target": "0.1", "autovacuum": "on", "autovacuum_naptime": "2s", "jit": "off"}
        return [self.found() / "postgres", "-D", self.data, *(f"--{key}={value}" for key, value in settings.items())]

    def _ping(self):
        return [self.found() / "pg_isready", "-q", "-h", self.run_directory, "-U", "postgres"]

    def _client(self):
        return ["psql", "-h", self.run_directory, "-U", "postgres", "-d", "postgres", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]

    def change(self, row, version):
        """A transaction that gives a row a version, and tells so when it is committed."""
        return f"update records set version = {version}, content = {self.content_of(row, version)} where id = {row} returning 'done {row} {version}';"

    @staticmethod
    def write_out():
        """A statement that writes all pages."""
        return "checkpoint; select 'done 0 0';"

    def inspect(self):
        """Heap and indexes agree."""
        self.sql("create extension if not exists amcheck; select bt_index_check(c.oid, true) from pg_class c join pg_index i on i.indexrelid = c.oid where c.relname in ('records_pkey', 'versions');")
        damaged = self.sql("select * from verify_heapam('records', check_toast => true);")
        self.t.equal(damaged, [], "damage found by amcheck")

    def checksums(self):
        """The checksums of all pages."""
        self.t.run(self.found() / "pg_checksums", "--check", "-D", self.data)


class MariaDB(Database):
    """MariaDB with InnoDB, without its doublewrite buffer. Its pages have checksums by default."""
    name, user, stop_signal, page, key = "mariadb", "mysql", signal.SIGTERM, "16K", "concat(id, ':', version)"

    @staticmethod
    def found():
        """Its programs, if it is installed."""
        return Path("/usr/sbin/mariadbd") if shutil.which("mariadbd") and shutil.which("innochecksum") else None

    def _make(self):
        self.t.run("mariadb-install-db", "--no-defaults", f"--datadir={self.data}", "--user=mysql", "--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-doublewrite=0", quiet=True)
        self.start()
        self.t.run(*self._client(None), stdin="create database records;")
        self.stop()

    def _command(self):
        return [self.found(), "--no-defaults", f"--datadir={self.data}", f"--socket={self.run_directory}/s", "--skip-networking", "--skip-log-bin", "--innodb-doublewrite=0",
                "--innodb-buffer-pool-size=6M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=1", "--innodb-max-dirty-pages-pct=10", "--innodb-io-capacity=2000",
                "--key-buffer-size=1M", "--aria-pagecache-buffer-size=4M", "--character-set-server=latin1", "--innodb-buffer-pool-load-at-startup=OFF", "--innodb-lock-wait-timeout=300",
                f"--pid-file={self.run_directory}/pid", f"--tmpdir={self.run_directory}"]

    def _ping(self):
        return ["mariadb-admin", "--no-defaults", f"--socket={self.run_directory}/s", "-uroot", "ping"]

    def _client(self, schema="records"):
        return ["mariadb", "--no-defaults", f"--socket={self.run_directory}/s", "-uroot", "--batch", "--unbuffered", "--skip-column-names", *([schema] if schema else [])]

    def change(self, row, version):
        """A transaction that gives a row a version, and tells so when it is committed."""
        return f"update records set version = {version}, content = {self.content_of(row, version)} where id = {row}; select 'done {row} {version}';"

    @staticmethod
    def write_out():
        """A statement that has pages written; they are anyway."""
        return "set global innodb_max_dirty_pages_pct_lwm = 1; select 'done 0 0';"

    def inspect(self):
        """The table and its indexes agree."""
        answer = self.sql("check table records extended;")
        self.t.equal([line.split("\t")[-2:] for line in answer], [["status", "OK"]], "CHECK TABLE")

    def checksums(self):
        """The checksums of all pages."""
        for file in [self.data / "ibdata1", *self.data.glob("*/*.ibd")]:
            self.t.run("innochecksum", file)


DATABASES = {database.name: database for database in (PostgreSQL, MariaDB)}


class Clients:
    """Clients that change rows of their own, one transaction after the other, and one that has pages written out. They go on while the storage stands
    still, and end with the database or when they are asked to."""

    def __init__(self, t, database, seed):
        self.t, self.database, self.ended = t, database, threading.Event()
        # By row: the last version that was acknowledged, and the last that was asked for. Each row belongs to one thread.
        self.acknowledged, self.asked, self.counted, self.errors = {}, {}, 0, []
        self.threads = [threading.Thread(target=self._guarded, args=(self._change, random.Random(seed * 100 + number), number)) for number in range(CLIENTS)]
        self.threads.append(threading.Thread(target=self._guarded, args=(self._write_out, random.Random(seed), 0)))
        t.defer(self.stop)
        for thread in self.threads:
            thread.start()

    def _guarded(self, work, chance, number):
        client = self.database.client()
        try:
            while not self.ended.is_set():
                work(client, chance, number)
        except Exception as error:  # noqa: BLE001 (it is reported)
            self.errors.append(error)
        finally:
            client.stdin.close()
            client.wait(STOP_SECONDS_MAX)

    def _asks(self, client, text, row, version):
        client.stdin.write(text + "\n")
        client.stdin.flush()
        line = client.stdout.readline().strip()
        if line != f"done {row} {version}":
            raise OSError(f"{self.database.name} answered {line!r} to {text[:100]!r}")

    def _change(self, client, chance, number):
        row = number * ROWS + chance.randrange(ROWS)
        version = self.asked.get(row, 0) + 1
        self.asked[row] = version
        self._asks(client, self.database.change(row, version), row, version)
        self.acknowledged[row] = version
        self.counted += 1

    def _write_out(self, client, chance, _number):
        self._asks(client, self.database.write_out(), 0, 0)
        self.ended.wait(chance.random())

    def more(self, count):
        """Waits for so many more transactions."""
        until = self.counted + count

        def have_come():
            if self.errors:
                self.t.fail(f"a client ended: {self.errors[0]!r}; {self.database.said()}")
            return self.counted >= until

        self.t.wait_for(have_come, f"{count} more transactions of {self.database.name}")

    def stop(self):
        """Ends them, after their present transactions."""
        self.ended.set()
        for thread in self.threads:
            thread.join()


def seed_of_run(t):
    """What all chances of a test come from: new each time, or as it is told."""
    seed = int(os.environ.get("SHALE_SEED") or random.SystemRandom().randrange(1 << 32))
    t.log(f"seed {seed}")
    return seed


def seconds(began):
    """Since then."""
    return f"{time.monotonic() - began:.0f} s"
