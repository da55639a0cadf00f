"""PostgreSQL and MariaDB on a directory, without their protection from torn pages, and clients that record which of their transactions were
acknowledged. Owns the spelling of the servers' command lines and of the statements; the tests decide what is killed, and when.

`SHALE_POSTGRESQL` names a directory with the programs of another PostgreSQL than Debian's."""

import contextlib
import os
import random
import re
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
# The PostgreSQL whose buffers begin at multiples of 4 KiB (PG_IO_ALIGN_SIZE).
PAGES_ALIGNED_SINCE = 16


class Database:
    """A server on a directory. Subclasses have the spelling."""

    def __init__(self, t, directory, name):
        self.t, self.data = t, Path(directory) / "data"
        # The servers run as users of their own, and must reach the share.
        t.dir.chmod(0o755)
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

    def crash(self):
        """kill -9, or the end that it came to by itself; returns when none of its processes is left, so that it can be started again."""
        children = children_of(self.server.pid)
        self.server.kill()
        self.server.wait(STOP_SECONDS_MAX)
        self.t.wait_for(lambda: not any(map(is_running, children)), f"the end of all processes of {self.name}", STOP_SECONDS_MAX)
        self.server = None

    def forget_processes(self):
        """Removes the record of running processes from a copy of the data, which a restart of the machine would have made meaningless."""

    def client(self, **pipes):
        """A client that takes statements from a pipe."""
        return subprocess.Popen([str(word) for word in self._client()], text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **pipes)

    def sql(self, text):
        """Runs statements, and returns their lines."""
        done = self.t.run(*self._client(), stdin=text, quiet=True)
        return done.stdout.splitlines()

    def fill(self):
        """The table of the clients. Each row has its version, and content that follows from both."""
        statements = ["create table records (id int primary key, version int not null, content text not null);"]
        for first in range(0, CLIENTS * ROWS, 500):
            rows = (f"({row}, 0, {self.content_of(row, 0)})" for row in range(first, first + 500))
            statements.append(f"insert into records values {', '.join(rows)};")
        self.sql("\n".join([*statements, "create index versions on records (version, id);"]))

    @staticmethod
    def content_by(key):
        """The content of a row by its key, as an expression of SQL."""
        return f"repeat(md5({key}), {REPEATED})"

    def content_of(self, row, version):
        """The content of a row with a version, as an expression of SQL."""
        return self.content_by(f"'{row}:{version}'")

    def verify(self, oldest, newest):
        """Demands that each row has a version in these bounds and its content, and that the server's own checks find nothing. Stops the server."""
        bad = self.sql(f"select id, version from records where content <> {self.content_by(self.key)};")
        self.t.equal(bad, [], f"rows of {self.name} with other content than their version's")
        found = dict(map(int, line.replace("\t", "|").split("|")) for line in self.sql("select id, version from records;"))
        self.t.equal(len(found), CLIENTS * ROWS, f"rows of {self.name}")
        for row, version in found.items():
            low, high = oldest.get(row, 0), newest.get(row, 0)
            self.t.expect(low <= version <= high, f"row {row} of {self.name} has version {version}: {low} was acknowledged, {high} the newest")
        self.inspect()
        self.stop()
        drop_cached(self.data)
        self.checksums()


class PostgreSQL(Database):
    """PostgreSQL with checksums of pages, and without full-page writes if its buffers begin at multiples of 4 KiB, as those of version 16 and later do.
    Pages of other buffers may reach the share in two requests. `SHALE_FULL_PAGE_WRITES` sets them for any version."""
    name, user, stop_signal, page, key = "postgresql", "postgres", signal.SIGINT, "8K", "id || ':' || version"

    @staticmethod
    def found():
        """Its programs, if it is installed."""
        if other := os.environ.get("SHALE_POSTGRESQL"):
            return Path(other)
        return max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), default=None)

    def __init__(self, t, directory, name):
        super().__init__(t, directory, name)
        self.version = int(re.search(r"\d+", t.out(self.found() / "postgres", "--version"))[0])
        self.full_page_writes = os.environ.get("SHALE_FULL_PAGE_WRITES") or ("off" if self.version >= PAGES_ALIGNED_SINCE else "on")
        self.described = f"PostgreSQL {self.version} with full_page_writes={self.full_page_writes}"

    def forget_processes(self):
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def table_file(self):
        """The file with the rows, asked of the running server."""
        return self.data / self.sql("select pg_relation_filepath('records');")[0]

    def _make(self):
        command = [self.found() / "initdb", "-D", self.data, "--data-checksums", "--auth=trust", "--no-instructions", "--no-locale", "--encoding=UTF8", "-U", "postgres"]
        self.t.run("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command, cwd=self.run_directory)

    def _command(self):
        settings = {"listen_addresses": "", "unix_socket_directories": self.run_directory, "full_page_writes": self.full_page_writes, "shared_buffers": "1MB", "max_wal_size": "32MB", "checkpoint_timeout": "30s",
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
    """MariaDB with InnoDB, without its doublewrite buffer and with direct I/O. Its pages have checksums by default."""
    name, user, stop_signal, page, key = "mariadb", "mysql", signal.SIGTERM, "16K", "concat(id, ':', version)"
    described = "MariaDB with innodb_doublewrite=0"

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
        return [self.found(), "--no-defaults", f"--datadir={self.data}", f"--socket={self.run_directory}/s", "--skip-networking", "--skip-log-bin", "--innodb-doublewrite=0", "--innodb-flush-method=O_DIRECT",
                "--innodb-buffer-pool-size=6M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=1", "--innodb-max-dirty-pages-pct=10", "--innodb-io-capacity=2000",
                "--key-buffer-size=1M", "--aria-pagecache-buffer-size=4M", "--character-set-server=latin1", "--innodb-buffer-pool-load-at-startup=OFF", "--innodb-lock-wait-timeout=300",
                f"--pid-file={self.run_directory}/pid", f"--tmpdir={self.run_directory}"]

    def _ping(self):
        return ["mariadb-admin", "--no-defaults", f"--socket={self.run_directory}/s", "-uroot", "ping"]

    def _client(self, schema="records"):
        return ["mariadb", "--no-defaults", f"--socket={self.run_directory}/s", "-uroot", "--batch", "--unbuffered", "--skip-column-names",
                "--default-character-set=latin1", *([schema] if schema else [])]

    def change(self, row, version):
        """A transaction that gives a row a version, and tells so when it is committed."""
        return f"update records set version = {version}, content = {self.content_of(row, version)} where id = {row}; select 'done {row} {version}';"

    @staticmethod
    def write_out():
        """A statement that has pages written; they are anyway."""
        return "set global innodb_max_dirty_pages_pct_lwm = 1; select 'done 0 0';"

    def inspect(self):
        """The table and its indexes agree. Of entries that are not purged yet, CHECK TABLE may warn, on any file system."""
        answer = self.sql("set global innodb_max_purge_lag_wait = 0; check table records extended;")
        self.t.equal([line.split("\t")[-2:] for line in answer], [["status", "OK"]], "CHECK TABLE")

    def checksums(self):
        """The checksums of all pages."""
        for file in [self.data / "ibdata1", *self.data.glob("undo*"), *self.data.glob("*/*.ibd")]:
            self.t.run("innochecksum", file)

    def table_file(self):
        """The file with the rows."""
        return self.data / "records" / "records.ibd"


DATABASES = {database.name: database for database in (PostgreSQL, MariaDB)}


class Clients:
    """Clients that change rows of their own, one transaction after the other, and one that has pages written out. They go on while the storage stands
    still, and end with the database or when they are asked to. `before`: earlier clients, which ended with the database, and whose rows they take over."""

    def __init__(self, t, database, seed, before=None):
        self.t, self.database, self.ended = t, database, threading.Event()
        # By row: the last version that was acknowledged, and the last that was requested. Each row belongs to one thread.
        self.acknowledged, self.asked = (dict(before.acknowledged), dict(before.asked)) if before else ({}, {})
        # Transactions of each thread; a sum over threads would lose some.
        self.counts, self.errors, self.processes = list(before.counts) if before else [0] * CLIENTS, [], []
        self.threads = [threading.Thread(target=self._guarded, args=(self._change, random.Random(seed * 100 + number), number)) for number in range(CLIENTS)]
        self.threads.append(threading.Thread(target=self._guarded, args=(self._write_out, random.Random(seed), 0)))
        t.defer(self._abandon)
        for thread in self.threads:
            thread.start()

    @property
    def counted(self):
        """Transactions that were acknowledged, those of the clients before included."""
        return sum(self.counts)

    def _guarded(self, work, chance, number):
        client = self.database.client()
        self.processes.append(client)
        try:
            while not self.ended.is_set():
                work(client, chance, number)
        except Exception as error:  # noqa: BLE001 (it is reported)
            self.errors.append(error)
        finally:
            # Of a client that ended with its database.
            with contextlib.suppress(BrokenPipeError):
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
        self.counts[number] += 1

    def _write_out(self, client, chance, _number):
        self._asks(client, self.database.write_out(), 0, 0)
        self.ended.wait(chance.random())

    def _expect_none_ended(self):
        if self.errors:
            self.t.fail(f"a client ended: {self.errors[0]!r}; {self.database.said()}")

    def more(self, count):
        """Waits for so many more transactions."""
        until = self.counted + count

        def have_come():
            self._expect_none_ended()
            return self.counted >= until

        self.t.wait_for(have_come, f"{count} more transactions of {self.database.name}", START_SECONDS_MAX)

    def stop(self):
        """Ends them, after their current transactions, none of which may fail."""
        self.ended.set()
        self._join()
        self._expect_none_ended()

    def end_with_database(self):
        """Waits for the end of clients whose database has crashed. The transactions in progress may have happened or not."""
        self.ended.set()
        self._join()

    def _join(self):
        for thread in self.threads:
            thread.join(STOP_SECONDS_MAX)
        self.t.expect(not any(thread.is_alive() for thread in self.threads), f"clients of {self.database.name} wait for an answer")

    def _abandon(self):
        """The guard: a client whose database waits for its storage would wait with it."""
        self.ended.set()
        for process in self.processes:
            process.kill()
        for thread in self.threads:
            thread.join(STOP_SECONDS_MAX)


def state_of(process):
    """State and parent of a process, as words of /proc/PID/stat; None if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None


def children_of(process):
    """Process ids of its children."""
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [number for number in numbers if (state := state_of(number)) and int(state[1]) == process]


def is_running(process):
    """Whether a process exists and has not ended; one that has ended may still wait for its parent."""
    state = state_of(process)
    return state is not None and state[0] not in "ZX"


def drop_cached(directory):
    """Drops the kernel's cached pages of all files, so that what is read next comes from the storage."""
    for path in directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seed_of_run(t):
    """The seed of all random choices of a test: SHALE_SEED, or a new one each time."""
    seed = int(os.environ.get("SHALE_SEED") or random.SystemRandom().randrange(1 << 32))
    t.log(f"seed {seed}")
    return seed


def seconds(began):
    """Since then."""
    return f"{time.monotonic() - began:.0f} s"
