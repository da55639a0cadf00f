"""Metrics with Debian's Prometheus, set up as docs/APPLIANCE.md says: it scrapes a loaded server, and every query of the dashboard and of the
alerts has data; promtool judges the metrics, the alerts and their unit tests. Only in `make e2e`, which sets SHALE_E2E."""

import contextlib
import json
import math
import os
import random
import re
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from harness import Pool, data, test
from harness.pool import BINARY, ROOT

from .door_clients import require
from .exports import free_ports
from .http import Web, make_token

RULES = ROOT / "deploy/prometheus/alerts.yaml"
RULE_TESTS = ROOT / "deploy/prometheus/alerts_test.yaml"
DASHBOARD = ROOT / "deploy/grafana/shale.json"
HEADING = "Prometheus, alerts and Grafana"
# Each second, so that a test need not wait for minutes; the page says 15 s.
EVERY_S = 1
# A variable of Grafana that is left over.
VARIABLE = re.compile(r"\$\{?\w+\}?")
SELECTOR = re.compile(r"\bshale_\w+(?:\{[^}]*\})?")
COMPARISON = re.compile(r"(>|<|==) (-?[\d.]+(?: \* [\d.]+)*)")


def alerts():
    """{alert: expression} of the shipped rules."""
    return dict(re.findall(r"^ +- alert: (\w+)\n +expr: (.+)$", RULES.read_text(), re.M))


def regex_of(values):
    """Values of a variable with several of them, as Grafana writes them into a regular expression of PromQL."""
    escaped = [re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", value.replace("\\", "\\\\\\\\")) for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


class Page:
    """The section of docs/APPLIANCE.md on Prometheus: its commands and files, with the directories of a test."""

    def __init__(self, t, pool, directory):
        self.t, self.pool, self.directory = t, pool, directory
        text = (ROOT / "docs/APPLIANCE.md").read_text()
        self.text = re.search(rf"^## {HEADING}\n(.*?)(?=^## |\Z)", text, re.M | re.S)[1]

    def here(self, text):
        return text.replace("/etc/prometheus", str(self.directory)).replace("/srv/pool", str(self.pool.path))

    def blocks(self, language):
        """Code of a language, in the order of the page."""
        found = re.findall(rf"^```{language}\n(.*?)^```", self.text, re.M | re.S)
        self.t.expect(found, f"the section '{HEADING}' has no {language}")
        return [self.here(text) for text in found]

    def type(self, *blocks):
        """Types commands of the page, by the number of their block."""
        environment = {**os.environ, "PATH": f"{self.t.dir}:{os.environ['PATH']}"}
        for block in [self.blocks("sh")[number] for number in blocks]:
            done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", block], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
            self.t.log(f"$ {block}{done.stdout}{done.stderr}")
            self.t.equal(done.returncode, 0, f"status of '{block}', which said {done.stderr}")


class Prometheus:
    """A running Prometheus with a configuration, as the user that Debian's package has for it."""

    def __init__(self, t, configuration, name="prometheus"):
        self.t, self.port = t, free_ports(1)[0]
        file, store = t.dir / "etc" / f"{name}.yml", t.dir / f"{name}.store"
        file.write_text(configuration)
        store.mkdir()
        t.run("chown", "prometheus:prometheus", store)
        said = t.run("promtool", "check", "config", file).stdout
        t.expect("SUCCESS" in said, f"promtool on the configuration: {said}")
        words = ["setpriv", "--reuid=prometheus", "--regid=prometheus", "--init-groups", "prometheus", f"--config.file={file}", f"--storage.tsdb.path={store}",
                 f"--web.listen-address=127.0.0.1:{self.port}"]
        t.log(f"$ {' '.join(words)} &")
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        t.defer(self.end)
        t.wait_for(self.is_ready, "Prometheus")

    def end(self):
        """The guard."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def is_ready(self):
        self.t.equal(self.process.poll(), None, "status of Prometheus")
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=60).status == 200
        return False

    def ask(self, path, **parameters):
        """The data of an answer."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            return self.t.fail(f"Prometheus refuses {parameters}: {error.read().decode()}")

    def now(self, expression):
        """[(labels, number)] of a query, numbers only."""
        found = self.ask("query", query=expression)["result"]
        return [(line["metric"], float(line["value"][1])) for line in found if math.isfinite(float(line["value"][1]))]

    def over_a_minute(self, expression):
        """The same of a query of a graph, each series with its newest number."""
        end = time.time()
        lines = self.ask("query_range", query=expression, start=end - 60, end=end, step=EVERY_S)["result"]
        series = [(line["metric"], [float(value) for _, value in line["values"] if math.isfinite(float(value))]) for line in lines]
        return [(labels, values[-1]) for labels, values in series if values]

    def targets(self):
        """{address: fault}, for addresses that were scraped."""
        return {line["labels"]["instance"]: line["lastError"] for line in self.ask("targets")["activeTargets"] if line["health"] != "unknown"}

    def rules(self):
        """{alert: (health, state)} of rules that were looked at."""
        groups = self.ask("rules")["groups"]
        return {rule["name"]: (rule["health"], rule["state"]) for group in groups for rule in group["rules"] if rule["health"] != "unknown"}


@contextlib.contextmanager
def load(t, server):
    """Clients that write and read volumes and a share until the end, and one that is refused."""
    import nbd

    stop, failures, refused = threading.Event(), [], []
    pieces = [data.base(("records", "text", "lines"))[place << 20:place + 1 << 20] for place in range(4)]

    def of_volume(name):
        handle, generator = nbd.NBD(), random.Random(name)
        handle.connect_uri(server.uri(name))
        while not stop.is_set():
            place = generator.randrange(60) << 20
            handle.pwrite(generator.choice(pieces), place)
            handle.flush()
            handle.pread(1 << 20, generator.randrange(60) << 20)
            handle.trim(1 << 16, place)
        handle.shutdown()

    def of_full_volume():
        handle, generator = nbd.NBD(), random.Random(1)
        handle.connect_uri(server.uri("small"))
        while not stop.is_set():
            try:
                handle.pwrite(generator.randbytes(1 << 16), generator.randrange(500) << 16)
            except nbd.Error as error:
                refused.append(error.errno)
                stop.wait(0.2)
        handle.shutdown()

    def of_share():
        number = 0
        while not stop.is_set():
            number += 1
            path = server.share("home") / f"{number % 20}.txt"
            path.write_bytes(pieces[number % 4])
            path.read_bytes()

    def guarded(function, *arguments):
        try:
            function(*arguments)
        except Exception as error:
            failures.append(f"{function.__name__}: {error!r}")

    work = [(of_volume, "vm"), (of_volume, "projects/db"), (of_full_volume,), (of_share,)]
    threads = [threading.Thread(target=guarded, args=arguments) for arguments in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    t.equal(failures, [], "failures of the clients under which it was scraped")
    t.equal(set(refused), {"ENOSPC"}, "answers to the client beyond its quota")


def rules_in(t, name, text):
    """The unit tests beside other rules: their status."""
    directory = t.dir / name
    directory.mkdir()
    (directory / RULES.name).write_text(text)
    (directory / RULE_TESTS.name).write_text(RULE_TESTS.read_text())
    status = t.run("promtool", "test", "rules", directory / RULE_TESTS.name, status=None, quiet=True).returncode
    return status


if os.environ.get("SHALE_E2E"):

    @test(seconds_max=900)
    def e2e_appliance_alert_tests(t):
        """promtool takes the alerts and their unit tests, which notice each comparison, selection and delay that is missing, and an alert that never fires"""
        require("promtool")
        said = t.run("promtool", "check", "rules", RULES).stdout
        t.expect(f"SUCCESS: {len(alerts())} rules found" in said, f"promtool on the rules: {said}")
        t.run("promtool", "test", "rules", RULE_TESTS)
        text, noticed = RULES.read_text(), 0
        for alert, expression in alerts().items():
            wrong = {"never": "vector(0) > 1"}
            for number, found in enumerate(COMPARISON.finditer(expression)):
                always = {">": "> -Inf", "<": "< Inf", "==": "> -Inf"}[found[1]]
                wrong[f"always-{number}"] = expression[:found.start()] + always + expression[found.end():]
            if "{" in expression:
                wrong["all"] = re.sub(r"\{[^}]*\}", "", expression)
            for how, other in wrong.items():
                planted = text.replace(f"alert: {alert}\n        expr: {expression}\n", f"alert: {alert}\n        expr: {other}\n")
                t.expect(planted != text, f"{alert} was not found")
                t.expect(rules_in(t, f"{alert}-{how}", planted) != 0, f"the unit tests take {alert} as '{other}'")
                noticed += 1
        for found in re.finditer(r"^ +for: \w+\n", text, re.M):
            t.expect(rules_in(t, f"for-{found.start()}", text[:found.start()] + text[found.end():]) != 0, f"the unit tests take {found[0].strip()} as immediate")
            noticed += 1
        t.note(f"{len(alerts())} alerts, {noticed} planted faults in them, each noticed by their unit tests")

    @test(seconds_max=900)
    def e2e_appliance_prometheus(t):
        """Prometheus by the page's configuration and a read token scrapes a loaded server; each query of dashboard and alerts has data, an alert fires and ends"""
        require("prometheus", "promtool")
        t.dir.chmod(0o755)
        (t.dir / "etc").mkdir()
        (t.dir / "shale").symlink_to(BINARY)
        pool = Pool(t, capacity="2G")
        pool.create("vm", "64M", compression="zstd-3")
        pool.create("small", "64M", compression="off", quota="4M")
        pool.shale("create", "projects", "--folder", "-o", "compression=lz4")
        pool.create("projects/db", "64M")
        pool.shale("create", "home", "--share")
        server = pool.serve(shares=True, words=["--http", "127.0.0.1:0", "--metrics", "token"])
        admin = Web(server, make_token(pool, "admin", "admin"))
        page = Page(t, pool, t.dir / "etc")
        page.type(0)
        configuration = page.blocks("yaml")[0].replace("127.0.0.1:8080", admin.host).replace("15s", f"{EVERY_S}s")
        t.expect(admin.host in configuration and f"scrape_interval: {EVERY_S}s" in configuration, f"address and interval in the page's configuration: {configuration}")

        with load(t, server):
            prometheus = Prometheus(t, configuration)
            t.wait_for(lambda: prometheus.targets() == {admin.host: ""}, "a scrape without a fault")
            status, _, text = admin.ask("GET", "/metrics", api=False)
            checked = t.run("promtool", "check", "metrics", stdin=text, status=None)
            t.equal((status, checked.returncode, checked.stdout, checked.stderr), (200, 0, "", ""), "promtool on the metrics of a loaded server")
            samples = [line for line in text.splitlines() if not line.startswith("#")]
            t.expect(len(samples) >= 50, f"only {len(samples)} samples")

            queries = with_data_of_dashboard(t, prometheus, admin.host)
            inner = with_data_of_alerts(t, prometheus)
            t.wait_for(lambda: set(prometheus.rules()) == set(alerts()), "a look at each alert")
            states = prometheus.rules()
            t.equal({health for health, _ in states.values()}, {"ok"}, "health of the alerts")
            t.equal([name for name, (_, state) in states.items() if state == "firing"], ["ShaleNotScrubbed"], "alerts that fire on a new pool")
            pool.shale("scrub")
            t.wait_for(lambda: prometheus.rules()["ShaleNotScrubbed"] == ("ok", "inactive"), "the end of an alert whose advice was followed")
            # The client beyond its quota is refused all the time, and that is no fault of the pool.
            sums = {labels["door"]: number for labels, number in prometheus.now('sum by (door) (shale_errors_total{kind="full"})')}
            t.expect(sums["nbd"] > 0, f"refused writes in the metrics: {sums}")
        t.note(f"Prometheus of Debian: {len(samples)} samples, {queries} queries of the dashboard and {inner} of {len(alerts())} alerts have data")

        # Without the token the scrape fails, and the alert on it is Prometheus' own `up`.
        pool.t.run(BINARY, "token", "revoke", pool.path, "prometheus")
        t.wait_for(lambda: "401" in prometheus.targets()[admin.host], "the refusal of a revoked token")
        t.equal([number for _, number in prometheus.now("up")], [0], "`up` with a revoked token")
        prometheus.end()
        server.stop()

    @test(seconds_max=600)
    def e2e_appliance_prometheus_tls(t):
        """Prometheus scrapes a server with TLS, as the page says, by the certificate that the server made; it refuses another one"""
        require("prometheus", "promtool")
        t.dir.chmod(0o755)
        (t.dir / "etc").mkdir()
        (t.dir / "shale").symlink_to(BINARY)
        pool = Pool(t, capacity="256M")
        server = pool.serve(words=["--http", "127.0.0.1:0", "--http-tls", "on", "--metrics", "token"])
        web, page = Web(server), Page(t, pool, t.dir / "etc")
        page.type(0, 1)
        configuration, tls = page.blocks("yaml")
        configuration = configuration.replace("127.0.0.1:8080", web.host).replace("15s", f"{EVERY_S}s") + tls
        prometheus = Prometheus(t, configuration)
        t.wait_for(lambda: prometheus.targets() == {web.host: ""}, "a scrape without a fault")
        prometheus.end()
        t.run("openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-keyout", t.dir / "other.key", "-out", t.dir / "etc" / "shale.pem", "-subj", "/CN=127.0.0.1",
              "-addext", "subjectAltName=IP:127.0.0.1")
        other = Prometheus(t, configuration, name="other")
        t.wait_for(lambda: "certificate" in other.targets().get(web.host, ""), "the refusal of another certificate")
        other.end()
        server.stop()


def with_data_of_dashboard(t, prometheus, host):
    """Demands data for each query of the dashboard, and the labels that its legend names; how many there are."""
    dashboard = json.loads(DASHBOARD.read_text())
    variable = next(line for line in dashboard["templating"]["list"] if line["name"] == "instance")
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
    values = prometheus.ask(f"label/{label}/values", **{"match[]": metric})
    t.equal(values, [host], "values of the dashboard's variable")
    count = 0
    for panel in dashboard["panels"]:
        ask = prometheus.now if panel["type"] == "stat" else prometheus.over_a_minute
        for target in panel["targets"]:
            query = target["expr"].replace("$instance", regex_of(values)).replace("$__rate_interval", f"{4 * EVERY_S}s")
            t.equal(VARIABLE.findall(query), [], f"variables of '{panel['title']}' that are not replaced")
            found = t.wait_for(lambda ask=ask, query=query: ask(query), f"data for '{panel['title']}': {query}")
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            t.expect(all(named <= labels.keys() for labels, _ in found), f"the legend of '{panel['title']}' names {named}: {found[:3]}")
            count += 1
    t.expect(count >= 20, f"only {count} queries")
    return count


def with_data_of_alerts(t, prometheus):
    """Demands data for each series of the alerts, and for both sides of their comparisons; how many queries these are."""
    count = 0
    for alert, expression in alerts().items():
        compared = COMPARISON.sub(r"\1 bool \2", expression)
        t.expect(compared != expression, f"{alert} compares nothing: {expression}")
        for query in {*SELECTOR.findall(expression), compared}:
            t.wait_for(lambda query=query: prometheus.now(query), f"data for '{query}' of {alert}")
            count += 1
    return count
