"""NBD over TLS, as OPERATIONS describes it, with the clients that people have: libnbd's, QEMU's, nbdkit."""

import json
import re
import shutil
import subprocess

from harness import Pool, data, test
from harness.context import digest
from harness.pool import EXIT, ROOT


def guide():
    """The commands of OPERATIONS, by step."""
    text = (ROOT / "docs" / "OPERATIONS.md").read_text()
    section = text.split("\n## NBD over TLS\n")[1].split("\n## ")[0]
    steps = re.split(r"^(\d)\. ", section, flags=re.MULTILINE)[1:]
    lines = {number: re.findall(r"^       (.+)$", step, re.MULTILINE) for number, step in zip(steps[::2], steps[1::2], strict=True)}
    return {number: "\n".join(commands) for number, commands in lines.items()}


def certificates(t):
    """The directories of the server and of the client `hv1`, made as the guide says."""
    server, client = t.dir / "tls", t.dir / "client"
    script = guide()["1"].replace("/etc/shale/tls", str(server)).replace("192.0.2.10", "127.0.0.1")
    t.run("bash", "-ec", script)
    client.mkdir()
    for name in ("ca-cert.pem", "client-cert.pem", "client-key.pem"):
        shutil.move(server / name, client / name) if name.startswith("client") else shutil.copy(server / name, client / name)
    return server, client


def issue(t, server, name, *extensions, authority=None, client="client", days=("-days", "2")):
    """A directory for a client with another certificate."""
    made = t.dir / name
    made.mkdir()
    shutil.copy(server / "ca-cert.pem", made)
    authority = authority or server
    request, extra = made / "request.pem", made / "extra"
    extra.write_text("\n".join(["basicConstraints=CA:FALSE", *extensions]) + "\n")
    t.run("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
          "-keyout", made / f"{client}-key.pem", "-out", request)
    t.run("openssl", "x509", "-req", "-in", request, *days, "-CA", authority / "ca-cert.pem", "-CAkey", authority / "ca-key.pem",
          "-extfile", extra, "-out", made / f"{client}-cert.pem")
    return made


def serve(t, *words, volumes=("vm", "other"), certificates_in=None):
    pool = Pool(t, capacity="1G")
    for volume in volumes:
        pool.create(volume, "64M")
    return pool, pool.serve(nbd=["127.0.0.1:0"], words=["--nbd-certificates", certificates_in, *words])


def uri(server, volume, client):
    return f"nbds://{server.tcp()}/{volume}?tls-certificates={client}"


def refused(t, *words):
    """The clients' own messages differ, and say little."""
    done = t.run(*words, status=None)
    t.expect(done.returncode != 0, f"{words} was not refused")


@test()
def nbd_tls_guide(t):
    """The commands of the guide, with another address: certificates, server, nbdinfo, nbdcopy and qemu-img; the bytes are right"""
    tls, client = certificates(t)
    words = re.search(r"--nbd-client \S+", guide()["3"]).group(0).split()
    pool, server = serve(t, *words, certificates_in=tls)
    t.expect(f"nbds://{server.tcp()}/" in server.output, f"the address that is shown: {server.output}")
    image = data.disk_image(t, t.dir / "debian.img", 64 << 20, 20 << 20)
    host, port = server.tcp().rsplit(":", 1)
    script = guide()["4"].replace("/etc/nbd-tls", str(client)).replace("192.0.2.10/", f"{host}:{port}/")
    script = script.replace("192.0.2.10", host).replace("port=10809", f"port={port}")
    t.run("bash", "-ec", f"cd {t.dir}\n{script}")
    t.run("nbdcopy", uri(server, "vm", client), t.dir / "back.img")
    t.equal(digest(t.dir / "back.img"), digest(image), "sha256 of what came back")
    creds = ["--object", f"tls-creds-x509,id=tls,dir={client},endpoint=client"]
    target = f"driver=nbd,host={host},port={port},export=vm,tls-creds=tls"
    t.run("qemu-img", "compare", *creds, "--image-opts", f"driver=file,filename={image}", target)
    out = t.out("qemu-io", *creds, "--image-opts", "-c", "write -P 0x5a 1M 3M", "-c", "flush", "-c", "read -P 0x5a 1M 3M", target)
    t.expect("Pattern verification failed" not in out, "qemu-io read something else than it had written")
    # On the server itself, without TLS.
    out = t.out("qemu-io", "-f", "raw", "-c", "read -P 0x5a 1M 3M", server.uri("vm"))
    t.expect("Pattern verification failed" not in out, "the plain door reads something else")
    exports = json.loads(t.out("nbdinfo", "--json", "--list", uri(server, "", client)))["exports"]
    t.equal([export["export-name"] for export in exports], ["vm"], "exports that hv1 sees")
    refused(t, "nbdinfo", uri(server, "other", client))
    server.stop()
    pool.check()


@test()
def nbd_tls_psk(t):
    """nbdkit with a pre-shared key in front of the Unix socket, as the guide says"""
    pool = Pool(t, capacity="1G")
    pool.create("vm", "64M")
    server = pool.serve()
    (t.dir / "keys.psk").write_text("hv1:" + "5a" * 32 + "\n")
    text = (ROOT / "docs" / "OPERATIONS.md").read_text()
    command = re.search(r"`(nbdkit --tls=require [^`]+)`", text).group(1).replace("/run/shale/tank/nbd.sock", str(server.socket))
    front = t.dir / "front.sock"
    kit = subprocess.Popen([*command.replace("nbdkit", f"nbdkit -f -U {front}", 1).split()], cwd=t.dir)
    t.defer(kit.wait)
    t.defer(kit.terminate)
    t.wait_for(front.exists, "nbdkit listens")
    client = f"nbds+unix://hv1@/vm?socket={front}&tls-psk-file={t.dir}/keys.psk"
    t.equal(t.out("nbdinfo", "--size", client), str(64 << 20), "size through nbdkit")
    server.stop()


@test()
def nbd_tls_refusals(t):
    """Who gets nothing: plain clients, no certificate, another authority, an expired one, a revoked one, a name without a rule"""
    tls, client = certificates(t)
    _, server = serve(t, "--nbd-client", "hv1=vm", "--nbd-client", "admin=*", certificates_in=tls)
    t.equal(t.out("nbdinfo", "--size", uri(server, "vm", client)), str(64 << 20), "size for hv1")
    refused(t, "nbdinfo", f"nbd://{server.tcp()}/vm")
    refused(t, "qemu-img", "info", "-f", "raw", f"nbd://{server.tcp()}/vm")
    bare = t.dir / "bare"
    bare.mkdir()
    shutil.copy(tls / "ca-cert.pem", bare)
    refused(t, "nbdinfo", uri(server, "vm", bare))
    other = t.dir / "other-authority"
    other.mkdir()
    t.run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
          "/CN=storage authority", "-keyout", other / "ca-key.pem", "-out", other / "ca-cert.pem")
    stranger = issue(t, tls, "stranger", "extendedKeyUsage=clientAuth", authority=other)
    refused(t, "nbdinfo", uri(server, "vm", stranger))
    expired = issue(t, tls, "expired", "extendedKeyUsage=clientAuth", days=("-days", "-1"))
    refused(t, "nbdinfo", uri(server, "vm", expired))
    admin = issue(t, tls, "admin", "extendedKeyUsage=clientAuth")
    for volume in ("vm", "other"):
        t.equal(t.out("nbdinfo", "--size", uri(server, volume, admin)), str(64 << 20), f"size of {volume} for admin")
    nobody = issue(t, tls, "nobody", "extendedKeyUsage=clientAuth")
    refused(t, "nbdinfo", uri(server, "vm", nobody))
    # A client that trusts another authority leaves.
    shutil.copy(other / "ca-cert.pem", nobody)
    refused(t, "nbdinfo", uri(server, "vm", nobody))
    # Revoked while the server runs.
    (tls / "index.txt").touch()
    (tls / "crlnumber").write_text("01\n")
    (tls / "ca.cnf").write_text(f"[ca]\ndefault_ca=it\n[it]\ndatabase={tls}/index.txt\ncrlnumber={tls}/crlnumber\ndefault_md=sha256\n"
                                "default_crl_days=2\ncrl_extensions=extra\n[extra]\nauthorityKeyIdentifier=keyid\n")
    authority = ["-config", tls / "ca.cnf", "-cert", tls / "ca-cert.pem", "-keyfile", tls / "ca-key.pem"]
    t.run("openssl", "ca", *authority, "-revoke", admin / "client-cert.pem")
    t.run("openssl", "ca", *authority, "-gencrl", "-out", tls / "ca-crl.pem")
    refused(t, "nbdinfo", uri(server, "vm", admin))
    t.equal(t.out("nbdinfo", "--size", uri(server, "vm", client)), str(64 << 20), "size for hv1 with a list of revoked ones")
    t.expect(server.process.poll() is None, "the server has ended")
    server.stop()


@test()
def nbd_tls_settings(t):
    """`on` serves both kinds, `off` neither; wrong directories and rules that cannot hold are refused before anything is served"""
    tls, client = certificates(t)
    pool, server = serve(t, "--nbd-tls", "on", certificates_in=tls)
    t.equal(t.out("nbdinfo", "--size", f"nbd://{server.tcp()}/vm"), str(64 << 20), "size without TLS")
    t.equal(t.out("nbdinfo", "--size", uri(server, "vm", client)), str(64 << 20), "size with TLS")
    server.stop()
    server = pool.serve(nbd=["127.0.0.1:0"], words=["--nbd-certificates", tls, "--nbd-tls", "off"])
    t.equal(t.out("nbdinfo", "--size", f"nbd://{server.tcp()}/vm"), str(64 << 20), "size without TLS")
    refused(t, "nbdinfo", uri(server, "vm", client))
    server.stop()
    empty = t.dir / "empty"
    empty.mkdir()
    serve_words = ["--nbd", "127.0.0.1:0", "--nbd-certificates"]
    said = pool.shale("serve", *serve_words, empty, status=EXIT["not-found"])
    t.expect(f"{empty}/server-cert.pem is missing" in said.stderr, said.stderr)
    for words in (["--nbd-tls", "on"], ["--nbd-tls", "off"]):
        said = pool.shale("serve", *serve_words, tls, *words, "--nbd-client", "hv1=vm", status=EXIT["usage"])
        t.expect("--nbd-client needs --nbd-tls required" in said.stderr, said.stderr)
    (tls / "ca-cert.pem").unlink()
    said = pool.shale("serve", *serve_words, tls, "--nbd-client", "hv1=vm", status=EXIT["usage"])
    t.expect("ca-cert.pem" in said.stderr, said.stderr)
    (tls / "server-key.pem").write_text("no key\n")
    said = pool.shale("serve", *serve_words, tls, status=EXIT["usage"])
    t.expect(f"{tls}/server-key.pem cannot be used" in said.stderr, said.stderr)
