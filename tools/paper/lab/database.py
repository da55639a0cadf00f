"""Database servers on a place: PostgreSQL and MariaDB, durable at every commit, with a small cache of their own."""

import contextlib
import shutil
import signal
import subprocess
import time
from pathlib import Path

START_SECONDS = 120
STOP_SECONDS = 600
# Part of the allowed memory that a database's own cache gets. Beside Shale the load has less than half of that memory,
# and a database that is given a quarter of the whole is killed while it makes indexes.
CACHE_PART = 8


class Database:
    """A server while it is used; its data is on the place, it runs within the place's limits."""

    def __init__(self, place, memory, settings=()):
        self.place, self.cache, self.settings = place, memory // CACHE_PART, settings
        self.data = place.path / self.name
        self.socket_directory = place.directory / "sockets"
        self.server = None

    def __enter__(self):
        self.place.lab.work.chmod(0o755)
        for path in (self.data, self.socket_directory):
            path.mkdir(exist_ok=True)
            shutil.chown(path, self.user, self.user)
        self._make()
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        """Starts the server and returns when it answers."""
        self.log = open(self.place.directory / f"{self.name}.log", "ab")
        self.server = self.place.spawn(self._command(), user=self.user, stdout=self.log, stderr=self.log)
        until = time.monotonic() + START_SECONDS
        while subprocess.run(self._ping(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            if self.server.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{self.name} did not come up: " + (self.place.directory / f"{self.name}.log").read_text(errors="replace")[-2000:])
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(0.1)

    def stop(self):
        """Stops it in order, so that all is written out."""
        if self.server and self.server.poll() is None:
            self.server.send_signal(self.stop_signal)
            try:
                self.server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
        self.log.close()

    def cold(self):
        """Restarts it with nothing in any cache."""
        self.stop()
        self.place.cold()
        self.start()

    def sql(self, text):
        """Runs statements and returns what they print."""
        done = subprocess.run([str(c) for c in self._client()], input=text, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self.name}: {done.stderr.strip()[-2000:]} in: {text[:300]}")
        return done.stdout


class PostgreSQL(Database):
    """PostgreSQL as Debian packages it."""
    name, user, stop_signal, page = "postgresql", "postgres", signal.SIGINT, "8K"

    def __init__(self, place, memory, settings=()):
        super().__init__(place, memory, settings)
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not found:
            raise SystemExit("PostgreSQL is not installed: tools/setup paper")
        self.bin = found[-1]

    def _make(self):
        self.place.run([self.bin / "initdb", "-D", self.data, "--auth=trust", "--no-instructions", "--no-locale", "--encoding=UTF8", "-U", "postgres"], user=self.user)
        with open(self.data / "postgresql.conf", "a", encoding="ascii") as file:
            file.write(f"listen_addresses=''\nunix_socket_directories='{self.socket_directory}'\nshared_buffers={self.cache >> 20}MB\nmax_wal_size=512MB\njit=off\nautovacuum=off\n"
                       "max_parallel_workers_per_gather=0\nwork_mem=8MB\nmaintenance_work_mem=16MB\n" + "".join(f"{line}\n" for line in self.settings))

    def _command(self):
        return [self.bin / "postgres", "-D", self.data]

    def _ping(self):
        return [self.bin / "pg_isready", "-q", "-h", self.socket_directory, "-U", "postgres"]

    def _client(self):
        return [self.bin / "psql", "-h", self.socket_directory, "-U", "postgres", "-d", "postgres", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]

    def load(self, table, path, header, delimiter):
        """Fills a table from a file."""
        self.sql(f"\\copy {table} from '{path}' with (format csv, header {header}, delimiter E'{delimiter}', quote '\"')")

    def analyse(self):
        """Gathers statistics, and leaves no work for later."""
        self.sql("vacuum analyze; checkpoint;")


class MariaDB(Database):
    """MariaDB with InnoDB, as Debian packages it."""
    name, user, stop_signal, page = "mariadb", "mysql", signal.SIGTERM, "16K"

    def _make(self):
        self.place.run(["mariadb-install-db", "--no-defaults", f"--datadir={self.data}", "--user=mysql", "--auth-root-authentication-method=normal", "--skip-test-db"])

    def _command(self):
        return ["/usr/sbin/mariadbd", "--no-defaults", f"--datadir={self.data}", f"--socket={self.socket_directory}/mariadb", "--skip-networking", "--skip-log-bin",
                f"--innodb-buffer-pool-size={self.cache}", "--innodb-log-buffer-size=4M", "--aria-pagecache-buffer-size=4M", "--key-buffer-size=1M", "--max-connections=40",
                "--innodb-log-file-size=256M", "--innodb-flush-log-at-trx-commit=1", "--character-set-server=latin1",
                "--innodb-lock-wait-timeout=300", "--innodb-buffer-pool-load-at-startup=OFF", f"--pid-file={self.socket_directory}/pid", "--tmpdir=" + str(self.socket_directory), *(f"--{line}" for line in self.settings)]

    def _ping(self):
        return ["mariadb-admin", "--no-defaults", f"--socket={self.socket_directory}/mariadb", "-uroot", "ping"]

    def _client(self):
        return ["mariadb", "--no-defaults", f"--socket={self.socket_directory}/mariadb", "-uroot", "--local-infile=1", "--batch", "--skip-column-names", "-D", "mysql"]

    def load(self, table, path, header, delimiter):
        """Fills a table from a file."""
        self.sql(f"use paper; load data local infile '{path}' into table {table} fields terminated by '{delimiter}' optionally enclosed by '\"' "
                 f"lines terminated by '\\n' {'ignore 1 lines' if header == 'true' else ''};")

    def analyse(self):
        """Gathers statistics."""
        for table in self.sql("select table_name from information_schema.tables where table_schema = 'paper'").split():
            self.sql(f"use paper; analyze table {table};")
