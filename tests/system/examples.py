"""What help and README tell people to type, typed: every example of every command, and the blocks of the README.

Paths of examples are replaced by ones in the test's directory, and nothing else; other machines (`ssh`) by the same one with
another pool. Each example finds the same pools, unless it goes on from the one before it (SEQUENCES).
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

from harness import data, test
from harness.pool import BINARY, READY_SECONDS_MAX, ROOT

# Commands whose examples are the steps of one story.
SEQUENCES = {"promote", "blob"}

# What must hold before an example, beside what `make_world` makes. The first pattern that is found in the example counts.
BEFORE = [
    (r"--nbd-certificates", "mkdir -p /etc/shale/tls; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=storage1 "
                            "-keyout /etc/shale/tls/server-key.pem -out /etc/shale/tls/server-cert.pem"),
    (r"/etc/shale/tank.toml|shale reload", "mkdir -p /etc/shale; echo 'pool = \"/srv/pool\"' > /etc/shale/tank.toml"),
    (r"rename \S+ vm projects/web/vm", "shale create /srv/pool projects/web --folder -p"),
    (r"rename \S+ projects old/projects", "shale create /srv/pool projects/web/db1 --size 1G -p; shale create /srv/pool old --folder"),
    (r"send \S+ -R projects@monday", "shale create /srv/pool projects/web/db1 --size 1G -p; shale snapshot /srv/pool -r projects@monday;"
                                     "ssh backup shale create /srv/pool copies --folder"),
    (r"create \S+ home/meier", "shale create /srv/pool home --share"),
    (r"(destroy|rollback) \S* ?\S+ projects@monday", "shale create /srv/pool projects/web/db1 --size 1G -p; shale snapshot /srv/pool -r projects@monday"),
    (r"shale (snapshot|list|destroy|set) .*projects", "shale create /srv/pool projects/web/db1 --size 1G -p"),
    (r"set \S+ home ", "shale create /srv/pool home --share"),
    (r"create \S+ vm ", "shale destroy -r /srv/pool vm"),
    (r"import \S+ home old.tar", "tar -C /home -cf old.tar meier"),
    (r"import \S+ home - ", "tar -C /home -czf home.tar.gz meier; shale import /srv/pool home /home/meier"),
    (r"estimate \S+ home", "tar -C /home -cf tree.tar file meier; shale create /srv/pool home --share; shale import /srv/pool home tree.tar"),
    (r"(explain|usage|recompress) \S+ home", "mkdir -p meier/mail; echo hello > meier/notes.txt; tar -cf tree.tar meier; rm -r meier;"
                                             "shale create /srv/pool home --share; shale import /srv/pool home tree.tar"),
    (r"export \S+ home", "shale import /srv/pool home /home/meier; shale snapshot /srv/pool home@monday"),
    (r"import \S+ vm (disk.img|-)$", "shale destroy -r /srv/pool vm"),
    (r"destroy --partial \S+ copy", "shale send /srv/pool vm@monday -o broken; head -c 1500000 broken | shale receive /srv/pool copy || true"),
    (r"destroy \S+ vm($| --force)", "shale destroy -r /srv/pool vm; shale create /srv/pool vm --size 1G"),
    (r"snapshot \S+ vm@before-upgrade", "shale destroy /srv/pool vm@before-upgrade"),
    (r"rename \S+ web@s1", "shale rename /srv/pool vm web; shale destroy /srv/pool web@before-upgrade"),
    (r"--resume shale1-4f", "shale send /srv/pool vm@monday | head -c 1500000 | ssh backup shale receive /srv/pool vm || true"),
    (r"ssh prod shale send", "shale send /srv/pool vm@monday -o s; shale send /srv/pool vm@tuesday --from monday -o d;"
                             "ssh prod shale receive /srv/pool vm -i s; ssh prod shale receive /srv/pool vm -i d;"
                             "shale destroy -r /srv/pool vm; shale receive /srv/pool vm -i s"),
    (r"destroy \S+ 'vm#monday", "shale bookmark /srv/pool vm@monday monday"),
    (r"^shale release", "shale hold /srv/pool vm@monday offsite"),
    (r"--from '#monday' \| ssh", "shale bookmark /srv/pool vm@monday monday;"
                                 "shale send /srv/pool vm@monday | ssh backup shale receive /srv/pool vm"),
    (r"--all-from good \| ssh", "shale send /srv/pool vm@good | ssh backup shale receive /srv/pool vm"),
    (r"receive \S+ -R --prefix", "shale send /srv/pool -R vm@monday -o /backup/week.shale"),
    (r"--thin \| ssh", "shale blob put file:///srv/blobs/disk small; shale clone file:///srv/blobs/disk /srv/pool vm1;"
                       "shale snapshot /srv/pool vm1@monday"),
    (r"--from monday \| ssh", "shale send /srv/pool vm@monday | ssh backup shale receive /srv/pool vm"),
    (r"^shale receive", "shale send /srv/pool vm@monday -o /backup/vm-monday.shale; cp /backup/vm-monday.shale .;"
                        "shale destroy -r /srv/pool vm"),
    (r"export \S+ vm disk.img", "rm disk.img"),
    # Not 20 GiB of zeroes.
    (r"export \S+ vm (-|\S+ --force)", "shale destroy -r /srv/pool vm; shale import /srv/pool vm small"),
    (r"shale clone file:", "shale blob put file:///srv/blobs/disk small"),
    (r"shale push \S+ vm9@", "shale blob put file:///srv/blobs/disk small; shale clone file:///srv/blobs/disk /srv/pool vm9;"
                           "shale snapshot /srv/pool vm9@patched"),
    (r"shale passwd .* <", "echo 'correct horse battery' > password.txt"),
    (r"shale passwd \S+ guest --remove", "echo 'correct horse battery' | shale passwd /srv/pool guest"),
    (r"shale token revoke \S+ backup", "shale token create /srv/pool --name backup"),
    (r"shale init", "rm -rf /srv/pool"),
    (r"salvage /dev/nvme0n1p4", "rm -rf /srv/pool /srv/new; shale init /srv/pool --data /dev/nvme0n1p4 --force;"
                                "shale create /srv/pool vm --size 1G"),
    (r"salvage /srv/pool", "rm -rf /srv/new"),
]

# Paths of the examples, longest first, and where they are here.
PATHS = {"/mnt/shale": "mnt", "/srv/pool": "pool", "/srv/shares": "shares", "/srv/copy-of-home": "copy-of-home", "/srv/new": "new", "/backup": "backup", "/home": "home", "/mnt/vm": "fs",
         "/run": "run", "/etc/shale": "exports", "/big": "big", "/srv/blobs": "blobs"}


def translated(t, text):
    """An example with the paths of this test."""
    for path, name in PATHS.items():
        text = re.sub(rf"(?:(?<=file://)|(?<![\w/.])){re.escape(path)}(?![\w-])", str(t.dir / name), text)
    return text


def make_world(t):
    """Programs and files that the examples take for granted, and a pool to begin with, kept as a template."""
    tools = t.dir / "bin"
    tools.mkdir()
    (tools / "shale").symlink_to(BINARY)
    # Another machine: the same binary, but what is called /srv/pool there is another pool.
    here, there = t.dir / "pool", t.dir / "remote"
    (tools / "ssh").write_text(f'''#!/bin/bash
shift
words=()
for word; do [[ $word == '{here}' ]] && word='{there}'; words+=("$word"); done
exec "${{words[@]}}"
''')
    (tools / "ssh").chmod(0o755)
    for name in ["backup", "home", "run", "big", "mnt", "fs", "shares"]:
        (t.dir / name).mkdir()
    image = data.mixed_file(t.dir / "small", 4 << 20).read_bytes()
    (t.dir / "home" / "file").write_bytes(image)
    (t.dir / "home" / "meier" / "thesis").mkdir(parents=True)
    (t.dir / "home" / "meier" / "thesis" / "text").write_bytes(image)
    for name, path in [("partition", "/dev/nvme0n1p4"), ("usb", "/dev/sdb")]:
        with open(t.dir / name, "wb") as file:
            file.truncate(2 << 30)
        PATHS[path] = t.loop(t.dir / name)
    t.run("dd", f"if={t.dir}/small", f"of={PATHS['/dev/sdb']}", "bs=1M", "status=none")
    with open(t.dir / "template.img", "wb") as file:
        file.write(image)
        # An example looks at a region there.
        file.seek(1 << 30)
        file.write(image)
    t.run("bash", "-c", f"gzip -c {t.dir}/small > {t.dir}/disk.img.gz")
    t.run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", t.dir / "template.img", t.dir / "disk.qcow2")
    for line in ["shale init /srv/pool --capacity 150G", "shale import /srv/pool vm template.img --size 20G",
                 *(f"shale snapshot /srv/pool vm@{name}" for name in ["s1", "good", "monday", "tuesday", "before-upgrade"]),
                 "shale create /srv/pool golden --size 1G", "shale snapshot /srv/pool golden@v1"]:
        shell(t, line)
    (t.dir / "pool").rename(t.dir / "template")
    t.run(BINARY, "init", t.dir / "remote-template", "--capacity", "8G")


def fresh(t):
    """The world as it was made."""
    for name, template in [("pool", "template"), ("remote", "remote-template")]:
        shutil.rmtree(t.dir / name, ignore_errors=True)
        t.run("cp", "-a", "--sparse=always", t.dir / template, t.dir / name)
    shutil.rmtree(t.dir / "backup")
    (t.dir / "backup").mkdir()
    t.run("cp", "--sparse=always", t.dir / "template.img", t.dir / "disk.img")


def shell(t, line):
    """Types a line; every part of it must succeed."""
    environment = {**os.environ, "PATH": f"{t.dir}/bin:{os.environ['PATH']}"}
    line = translated(t, line)
    t.log(f"$ {line}")
    done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", line], cwd=t.dir, env=environment, capture_output=True,
                          text=True, timeout=600, stdin=subprocess.DEVNULL, check=False, errors="replace")
    t.log((done.stdout[-2000:] + done.stderr[-2000:]).rstrip())
    t.expect(done.returncode == 0, f"'{line}' ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout


def examples_of(t, command):
    """The lines under "Examples:", without the remarks beside them."""
    text = t.run(BINARY, *command, "--help", quiet=True).stdout
    block = re.search(r"^Examples:\n((?:  .*\n)+)", text, re.MULTILINE)
    t.expect(block, f"the help of {command} has no examples")
    return [re.split(r" {2,}", line.strip())[0] for line in block.group(1).splitlines()]


def commands(t):
    """All commands of the binary."""
    text = t.run(BINARY, "--help", quiet=True).stdout
    groups = text[text.index("\nUsage:"):text.index("\nOptions:")]
    return re.findall(r"^  ([a-z]+)  ", groups, re.MULTILINE)


class Served:
    """`shale serve` as an example has it, until the end of the block."""

    def __init__(self, t, line):
        self.t = t
        words = [*shlex.split(translated(t, line)), "--ready-fd", "9"]
        environment = {**os.environ, "PATH": f"{t.dir}/bin:{os.environ['PATH']}"}
        reader, writer = os.pipe()
        t.log(f"$ {shlex.join(words)} &")
        self.process = subprocess.Popen(["bash", "-c", f"exec {shlex.join(words)} 9>&{writer}"], cwd=t.dir, env=environment,
                                        stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, pass_fds=[writer])
        t.defer(self.process.kill)
        os.close(writer)
        with open(reader, encoding="utf-8") as ready:
            t.equal(ready.readline(), "ready\n", f"what '{line}' said once it answered")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.t.equal(self.process.wait(READY_SECONDS_MAX), 0, "exit status of the server")


def prepare(t, line):
    """Makes a world that fits an example."""
    fresh(t)
    before = next((before for pattern, before in BEFORE if re.search(pattern, line)), None)
    if before:
        shell(t, before)


def run_example(t, line):
    """Types one example."""
    if "--resume shale1" in line:
        token = json.loads(t.run(BINARY, "status", t.dir / "remote", "--json", quiet=True).stdout)["receives"][0]["token"]
        line = re.sub(r"shale1-4f\.\.\.", token, line)
    if line.startswith("shale serve") and "--detach" in line:
        stop(t, int(shell(t, line)))
        return
    if line.startswith("shale serve"):
        with Served(t, line.replace(":10809", ":0")):
            return
    if line.startswith("shale trace"):
        # Without somebody who writes it would wait for ever.
        with Served(t, "shale serve /srv/pool"):
            shell(t, line.replace("/srv/pool", "/srv/pool --idle 1"))
            return
    if line.startswith("shale iostat"):
        # Without --count it would go on for ever.
        enough = line.replace("--every 5", "--every 1 --count 2")
        with Served(t, "shale serve /srv/pool"):
            shell(t, "shale export /srv/pool vm - --force | head -c 1M > /dev/null || true")
            shell(t, enough)
            return
    if line.startswith("shale stats"):
        # A history begins with a server.
        with Served(t, "shale serve /srv/pool"):
            shell(t, line)
            return
    if line.startswith("shale top"):
        # A screen needs a terminal, and goes on until a key ends it.
        with Served(t, "shale serve /srv/pool"):
            shell(t, line if "--once" in line else f"{line} --once")
            return
    if line.startswith("shale jobs"):
        # A job that rests for a minute behind its first slice, unless it is to be watched to its end.
        pace = "" if line.endswith(" 1") else " --rate 64K"
        with Served(t, "shale serve /srv/pool"):
            shell(t, f"shale recompress /srv/pool vm --background{pace}")
            shell(t, line)
            return
    if "--background" in line:
        with Served(t, "shale serve /srv/pool"):
            shell(t, line)
            return
    if line.startswith("shale reload"):
        with Served(t, "shale serve --config /etc/shale/tank.toml"):
            shell(t, line)
            return
    if line.startswith("losetup"):
        with Served(t, "shale serve /srv/pool --mount /mnt/shale"):
            t.run("losetup", "--detach", shell(t, line).strip())
            return
    if line.startswith("qemu-img"):
        with Served(t, "shale serve /srv/pool"):
            shell(t, line)
            return
    shell(t, line)


@test(seconds_max=1200)
def examples_of_the_help(t):
    """every example of every command's help is typed, and does not fail"""
    make_world(t)
    ran = 0
    # To look at one command again.
    only = os.environ.get("SHALE_EXAMPLES")
    for command in [[only]] if only else [[], *([name] for name in commands(t))]:
        lines = examples_of(t, command)
        is_story = not command or command[0] in SEQUENCES
        if is_story:
            fresh(t)
        if not command:
            lines = story_of_the_pool(t, lines)
        for line in lines:
            if not is_story:
                prepare(t, line)
            run_example(t, line)
            ran += 1
    t.expect(ran > 60 or only, f"only {ran} examples were found")
    t.note(f"{ran} examples")


def story_of_the_pool(t, lines):
    """Those of `shale --help` make the pool themselves."""
    shutil.rmtree(t.dir / "pool")
    t.expect(lines[0].startswith("shale init"), f"the first example is {lines[0]!r}")
    return lines


def stop(t, server):
    """Stops a server in the background, as README does."""
    t.run("kill", server)
    t.run("timeout", READY_SECONDS_MAX, "tail", f"--pid={server}", "-f", "/dev/null")


def end_detached(t, *pools):
    """The guard: no server in the background is left."""
    for pool in pools:
        status = json.loads(t.run(BINARY, "status", pool, "--json", status=None, quiet=True).stdout or "{}")
        if status.get("served"):
            stop(t, status["pid"])


def lines_of(text, heading):
    """The indented lines of a section, as they stand."""
    section = re.search(rf"^## {heading}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL).group(1)
    return [line.strip() for line in section.splitlines() if line.startswith("    ")]


def blocks(text, heading):
    """The indented lines of a section, without the remarks beside them."""
    return [re.split(r" {2,}#", line)[0] for line in lines_of(text, heading)]


def paste(t, lines):
    """Pastes lines into one shell, in which every line must succeed."""
    shell(t, "\n".join(lines))


@test(seconds_max=1200)
def readme_quick_start(t):
    """the README's quick start, pasted as one block on a machine that has nothing yet"""
    make_world(t)
    shutil.rmtree(t.dir / "template")
    t.run("cp", "-a", t.dir / "remote-template", t.dir / "remote")
    t.run("cp", t.dir / "small", t.dir / "debian.img")
    (t.dir / "bin" / "qemu-system-x86_64").write_text("#!/bin/sh\n")
    (t.dir / "bin" / "qemu-system-x86_64").chmod(0o755)
    # Made by the lines themselves.
    for name in ["mnt", "fs"]:
        (t.dir / name).rmdir()
    lines = lines_of((ROOT / "README.md").read_text(), "Quick start")
    t.equal(lines[0], "make build && sudo make install", "the first line")
    t.equal(lines.pop(), "sudo make demo", "the line of the demonstration")
    t.equal([line.split()[0:2] for line in lines[-2:]], [["kill", "$server;"], ["shale", "check"]], "the last two lines")
    t.defer(end_detached, t, t.dir / "pool")
    t.defer(t.umount, t.dir / "fs", must=False)
    paste(t, [line.replace(" ...", "") for line in lines[1:]])
    t.expect(Path(t.dir / "debian.img.gz").stat().st_size > 1000, "nothing was exported")


@test(seconds_max=600)
def readme_shares(t):
    """the README's shares up to the network, pasted as one block: the directory of the shares is made"""
    make_world(t)
    shell(t, "shale init /srv/pool --capacity 8G; shale create /srv/pool vm --size 1G")
    (t.dir / "shares").rmdir()
    (t.dir / "home" / "meier" / "notes.txt").write_text("one line\n" * 1000)
    lines = lines_of((ROOT / "README.md").read_text(), "Shares")
    lines = lines[:next(i for i, line in enumerate(lines) if line.startswith("shale set"))]
    t.expect(any("--shares" in line for line in lines), "the lines serve no shares")
    t.defer(end_detached, t, t.dir / "pool")
    paste(t, [*lines, "test -s /srv/shares/home/meier/notes.txt", "kill $server; tail --pid=$server -f /dev/null"])


@test(seconds_max=600)
def readme_blobs(t):
    """the README's blob in a directory, typed word by word"""
    make_world(t)
    t.run("cp", t.dir / "small", t.dir / "books.tar")
    for line in blocks((ROOT / "README.md").read_text(), "Blobs"):
        shell(t, line)
    t.equal((t.dir / "copy.tar").read_bytes(), (t.dir / "small").read_bytes(), "what came back")
