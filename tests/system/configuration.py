"""The settings file of a server: each key, reloads, and files that are wrong."""

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import tomllib
from pathlib import Path

from harness import Pool, test
from harness.pool import BINARY, EXIT, Server
from harness.sweep import mounts_under
from system import nbd_tls
from system.http import Web


class Configured(Server):
    """`shale serve --config FILE`."""

    def __init__(self, t, file, pool, waits=True):
        # Mounts that a test leaves are below its directory.
        self.t, self.file, self.pool, self.mount_dir, self.shares_dir = t, file, pool, None, t.dir
        self.log = t.dir / f"{file.stem}.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([BINARY, "serve", "--config", file], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=log)
        t.defer(self.end)
        self.output = ""
        if waits:
            self._wait_ready()

    def reload(self, status="ok"):
        """`shale reload POOL --json`: its document."""
        done = self.pool.shale("reload", "--json", status=EXIT[status])
        return json.loads(done.stdout)

    def said(self, text):
        """Whether that is in the log."""
        return text in self.log.read_text()


def write(file, **settings):
    """A settings file. What JSON writes of strings, numbers, truths and lists, TOML reads."""
    lines = [f"{key.replace('_', '-')} = {json.dumps(value, default=str)}\n" for key, value in settings.items()]
    file.write_text("".join(lines))
    return file


def is_listening(path, kind=socket.SOCK_STREAM):
    """Whether a server answers on a unix socket."""
    with socket.socket(socket.AF_UNIX, kind) as client, contextlib.suppress(OSError):
        client.connect(str(path))
        return True
    return False


def pool_with_all(t, name="pool"):
    """A pool with volumes and shares."""
    pool = Pool(t, name, capacity="1G")
    for volume in ("vm", "other"):
        pool.create(volume, "16M")
    for share in ("home", "hidden"):
        pool.shale("create", share, "--share")
    return pool


@test()
def configuration_every_key(t):
    """every key of the example file changes something in a server that is started with it"""
    pool = pool_with_all(t)
    key, certificate = t.dir / "key.pem", t.dir / "certificate.pem"
    t.run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=nas.example",
          "-days", "2", "-keyout", key, "-out", certificate)
    standby = Path(tempfile.mkdtemp(prefix="shale-configuration-", dir="/dev/shm"))
    t.defer(t.run, "rm", "-rf", standby)
    mount, shares, exports, vhost, nbd = (t.dir / name for name in ("mount", "shares", "exports", "vhost", "nbd.sock"))
    mount.mkdir()
    (mount / "hidden-by-the-mount").touch()
    exports.mkdir()
    nbd_certificates, nbd_client = nbd_tls.certificates(t)
    file = write(t.dir / "all.toml", pool=pool.path, nbd=[f"unix:{nbd}", "127.0.0.1:0"], nbd_tls="required",
                 nbd_certificates=nbd_certificates, nbd_client=["hv1=vm", "other=home"], vhost_user=vhost, mount=mount, shares=shares, exports=exports,
                 http=["127.0.0.1:0"], http_tls=True, http_cert=certificate, http_key=key, http_name=["nas.example"], metrics="token",
                 overlay=True, connections=3, allow_other=True, volume=["vm", "home"], memory="96M", standby=standby, analytics="off",
                 keep_mounts=True, wait_for_server="1s", wait=60)
    # The kernel may have no driver for one that is there.
    devices = write(t.dir / "devices.toml", pool=pool.path, ublk=["vm", "none"])
    t.expect("'none'" in t.run(BINARY, "serve", "--config", devices, status=EXIT["not-found"]).stderr, "what the key 'ublk' changes")
    # Another process has the pool: one server gives up at once, and the other waits.
    with open(pool.path / "lock", "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = Configured(t, file, pool, waits=False)
        t.run(BINARY, "serve", "--config", write(t.dir / "hasty.toml", pool=pool.path, wait=0), status=EXIT["in-use"])
        t.equal(server.process.poll(), None, "status of the server that waits")
    server._wait_ready()
    seen = {"wait", "ublk"}
    status = pool.status()
    web = Web(server)

    def see(key, found, expected):
        t.equal(found, expected, f"what the key '{key}' changes")
        seen.add(key)

    see("pool", status["pid"], server.process.pid)
    see("nbd", (status["nbd"][0], is_listening(nbd)), (f"unix:{nbd}", True))
    over_tcp = f"//{status['nbd'][1]}/vm"
    see("nbd-tls", t.run("nbdinfo", f"nbd:{over_tcp}", status=None).returncode != 0, True)
    see("nbd-certificates", t.out("nbdinfo", "--size", f"nbds:{over_tcp}?tls-certificates={nbd_client}"), str(16 << 20))
    stranger = nbd_tls.issue(t, nbd_certificates, "other", "extendedKeyUsage=clientAuth")
    see("nbd-client", t.run("nbdinfo", f"nbds:{over_tcp}?tls-certificates={stranger}", status=None).returncode != 0, True)
    see("vhost-user", is_listening(vhost / "vm.sock"), True)
    see("mount", (mount / "vm").stat().st_size, 16 << 20)
    see("volume", ((mount / "other").exists(), sorted(mounts_under(shares))), (False, [str(shares / "home")]))
    see("shares", os.path.ismount(shares / "home"), True)
    see("exports", json.loads(pool.shale("exports", "--json").stdout)["dir"], str(exports))
    see("overlay", (mount / "hidden-by-the-mount").exists(), False)
    options = next(line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {mount} " in line)
    see("allow-other", "allow_other" in options, True)
    see("connections", status["nbd_connections_max"], 3)
    see("memory", status["memory_budget_bytes"], 96 << 20)
    see("standby", Path(status["standby"]).parent, standby)
    see("analytics", (pool.path / "history").exists(), False)
    see("http-tls", web.scheme, "https")
    fingerprint = t.out("openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", certificate).split("=")[1].replace(":", "").lower()
    told = re.search(r"^certificate SHA-256 (\S+)$", server.output, re.MULTILINE).group(1).replace(":", "").lower()
    see("http-cert", told, fingerprint)
    see("http-key", web.ask("GET", "/healthz", api=False)[0], 200)
    seen.add("http")
    see("http-name", [web.ask("GET", "/healthz", headers={"Host": host}, api=False)[0] for host in ("nas.example", "else.example")], [200, 421])
    see("metrics", web.ask("GET", "/metrics", api=False)[0], 401)

    see("keep-mounts", is_listening(pool.path / "keeper.sock", socket.SOCK_SEQPACKET), True)
    server.process.kill()
    server.process.wait()
    # With the default its programs would wait for ten minutes.
    try:
        (shares / "home" / "a new name").touch()
        t.fail("the mount has a server")
    except OSError as error:
        t.expect(error.errno in (errno.ENOTCONN, errno.ECONNABORTED), f"a program after wait-for-server: {error}")
    seen.add("wait-for-server")
    known = {key.lstrip("#") for key in re.findall(r"^(#?[a-z-]+) = ", t.out(BINARY, "config", "example"), re.MULTILINE)}
    t.equal(seen, known, "keys that were seen to change something")


@test()
def configuration_reload(t):
    """a reload adds and removes doors, addresses, shares and limits; what cannot change online is named; a client of a door that stays goes on"""
    pool = pool_with_all(t)
    first, second, mount, shares, vhost = (t.dir / name for name in ("first.sock", "second.sock", "mount", "shares", "vhost"))
    mount.mkdir()
    file = t.dir / "server.toml"
    base = {"pool": pool.path, "nbd": [f"unix:{first}"]}
    server = Configured(t, write(file, **base), pool)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(first))
        t.equal(client.recv(8), b"NBDMAGIC", "greeting")
        full = {**base, "nbd": [f"unix:{first}", f"unix:{second}"], "mount": mount, "shares": shares, "vhost_user": vhost, "http": ["127.0.0.1:0"],
                "connections": 5, "memory": "96M", "analytics": "off"}
        write(file, **full)
        told = server.reload()
        t.equal(told["changed"], ["analytics", "connections", "http", "mount", "nbd", "shares", "vhost-user"], "changed keys")
        t.equal(told["needs_restart"], ["memory"], "keys that need a restart")
        status = pool.status()
        t.equal((status["nbd"], status["nbd_connections_max"], status["pid"]), (full["nbd"], 5, server.process.pid), "status after the reload")
        t.expect(status["memory_budget_bytes"] != 96 << 20, "the memory has changed online")
        t.equal(sorted(mounts_under(t.dir)), sorted(map(str, [mount, shares / "home", shares / "hidden"])), "mounts")
        t.expect(is_listening(second) and is_listening(vhost / "vm.sock"), "the new doors do not answer")
        link = next(line for line in told["serving"] if line.startswith("http "))
        server.output = f"{link}\n"
        t.equal(Web(server).ask("GET", "/healthz", api=False)[0], 200, "status over HTTP")
        # Only some are served, and one address goes.
        write(file, **{**full, "nbd": full["nbd"][:1], "volume": ["vm", "home"]})
        server.process.send_signal(signal.SIGHUP)
        t.wait_for(lambda: server.said("changed: nbd, volume"), "the reload by SIGHUP")

        def recorded():
            lines = json.loads(pool.shale("history", "--json", quiet=True).stdout)
            return [line for line in lines if (line["operation"], line["from"], line["outcome"]) == ("reload", "SIGHUP", "done")]
        t.wait_for(recorded, "its line in the audit log")
        t.expect(not second.exists(), "the socket of an address that has gone is there")
        t.equal(sorted(mounts_under(t.dir)), sorted(map(str, [mount, shares / "home"])), "mounts")
        t.equal(sorted(os.listdir(mount)), ["vm"], "volumes")
        t.wait_for(lambda: not (vhost / "other.sock").exists(), "the end of the socket of a volume that is not served")
        # The client of the address that stayed is still in its handshake.
        t.equal(client.recv(10)[:8], b"IHAVEOPT", "what follows the greeting")
    # All go but the first address.
    write(file, **base)
    server.reload()
    t.equal(mounts_under(t.dir), [], "mounts")
    t.expect(is_listening(first) and not (vhost / "vm.sock").exists(), "the doors after the last reload")
    t.equal(server.reload()["changed"], [], "keys changed by a reload of the same file")
    server.stop()
    pool.check()


@test()
def configuration_wrong_reload(t):
    """a wrong file, an address that is taken, a mount in use and another pool leave the running server as it was, and say so in the log too"""
    pool = pool_with_all(t)
    mount, first, vhost = t.dir / "mount", t.dir / "first.sock", t.dir / "vhost"
    mount.mkdir()
    file = t.dir / "server.toml"
    base = {"pool": pool.path, "nbd": [f"unix:{first}"], "mount": mount}
    server = Configured(t, write(file, **base), pool)

    def refused(status, words, **settings):
        write(file, **settings)
        error = server.reload(status)["error"]["message"]
        t.expect(all(word in error for word in words), f"the answer {error!r} does not have {words}")
        for line in error.splitlines():
            t.expect(server.said(line), f"the log does not have {line!r}")
        t.equal((mounts_under(t.dir), pool.status()["nbd"], list(vhost.glob("*.sock"))), ([str(mount)], base["nbd"], []), "what is served")
        t.expect(is_listening(first) and (mount / "vm").exists(), "a door does not answer")

    refused("usage", [f"{file}:3: 'mout': unknown key; did you mean 'mount'?"], pool=pool.path, nbd=base["nbd"], mout=mount)
    refused("usage", [f"{file}:2: 'memory': invalid value '1X'"], pool=pool.path, memory="1X")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused("in-use", [address], **base, vhost_user=vhost, http=[address])
        refused("in-use", [address], **{**base, "nbd": [f"unix:{t.dir / 'new.sock'}", address]}, vhost_user=vhost)
    t.expect(not (t.dir / "new.sock").exists(), "a socket of a reload that failed is there")
    refused("not-found", ["'none'"], **base, volume=["none"])
    other = Pool(t, "another", capacity="256M")
    refused("usage", [str(other.path)], **{**base, "pool": other.path})
    with open(mount / "vm", "r+b") as held:
        refused("in-use", [str(mount)], pool=pool.path, nbd=base["nbd"], connections=7)
        held.write(b"x" * 4096)
    write(file, pool=pool.path, nbd=base["nbd"], connections=7)
    t.equal(server.reload()["changed"], ["connections", "mount"], "keys changed once the mount is free")
    t.equal(mounts_under(t.dir), [], "mounts")
    file.unlink()
    t.expect(str(file) in server.reload("not-found")["error"]["message"], "the file that is missing is not named")
    server.stop()
    t.run(BINARY, "reload", pool.path, status=EXIT["not-found"])
    usual = pool.serve()
    t.run(BINARY, "reload", pool.path, status=EXIT["unsupported"])
    usual.stop()


@test()
def configuration_check(t):
    """`config check` tells line, key and nearest name, in text and JSON, with its exit codes; the example is valid, and a server refuses a wrong file in the same words"""
    example = t.dir / "example.toml"
    example.write_text(t.out(BINARY, "config", "example") + "\n")
    tomllib.loads(example.read_text())
    t.equal(t.out(BINARY, "config", "check", example), f"{example} is valid, for the pool /srv/pool", "the answer for the example")
    wrong = write(t.dir / "wrong.toml", pool="/srv/pool", conections=7, memory="lots")
    done = t.run(BINARY, "config", "check", wrong, "--json", status=EXIT["usage"])
    document = json.loads(done.stdout)
    t.equal((document["valid"], document["pool"]), (False, None), "the verdict")
    t.equal([(fault["line"], fault["key"]) for fault in document["faults"]], [(2, "conections"), (3, "memory")], "faults")
    t.equal(document["faults"][0]["message"], "unknown key; did you mean 'connections'?", "the message")
    text = t.run(BINARY, "config", "check", wrong, status=EXIT["usage"]).stderr
    t.expect(f"{wrong}:2: 'conections': unknown key" in text and f"{wrong}:3: 'memory': " in text, f"text: {text!r}")
    started = t.run(BINARY, "serve", "--config", wrong, status=EXIT["usage"]).stderr
    t.expect(f"{wrong}:2: 'conections': unknown key" in started, f"text: {started!r}")
    t.run(BINARY, "config", "check", t.dir / "none.toml", status=EXIT["not-found"])
