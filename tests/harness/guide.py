"""A guide of docs/ as a user types it: the indented lines of a section, pasted into bash, with the paths of a test.

Owns the programs that stand in for those that change a machine: systemctl, and ssh to another one.
"""

import json
import os
import re
import subprocess

from harness.pool import BINARY, READY_SECONDS_MAX, ROOT

# Directories of the guide, which are below one of the test.
PLACES = ["/srv", "/etc", "/run", "/mnt", "/var/log", "/usr/local/sbin"]
PATHS = re.compile(rf"(?<![\w/.])({'|'.join(PLACES)})(?=/)")
SYSTEMCTL = """#!/bin/bash
# One service, without the service manager.
set -eu
case "$*" in
'enable --now shale@tank' | 'start shale@tank') shale serve --config TOP/etc/shale/tank.toml --detach --log TOP/serve.log >TOP/serve.pid ;;
'stop shale@tank') kill "$(<TOP/serve.pid)"; timeout SECONDS tail --pid="$(<TOP/serve.pid)" -f /dev/null ;;
'enable --now shale-backup.timer') systemd-analyze verify --man=no TOP/etc/systemd/system/shale-backup.{service,timer} ;;
*) echo "systemctl: unexpected words: $*" >&2; exit 2 ;;
esac
"""
# The other machine has a pool of the same name. A file `cut` there breaks the next stream off.
SSH = """#!/bin/bash
# Another machine, which is this one.
[[ $1 != -n ]] || shift
[[ $1 == backup ]] || exit 255
shift
unset SHALE_POOL
words=()
for word; do [[ $word == TOP/srv/pool ]] && word=TOP/backup; words+=("$word"); done
if [[ ${words[1]} == receive && -e TOP/cut ]]; then
    head -c "$(<TOP/cut)" | "${words[@]}"
else
    exec "${words[@]}"
fi
"""


class Guide:
    """Sections of one page, and the places that stand in for those of a machine."""

    def __init__(self, t, page="VM-GUIDE.md"):
        self.t, self.top, self.text = t, t.dir / "r", (ROOT / "docs" / page).read_text()
        self.programs = self.top / "usr/local/sbin"
        for place in ["srv", "mnt", "run/shale/tank", "var/log", "etc/systemd/system", "usr/local/sbin"]:
            (self.top / place).mkdir(parents=True)
        (self.programs / "shale").symlink_to(BINARY)
        self.program("systemctl", SYSTEMCTL.replace("SECONDS", str(READY_SECONDS_MAX)))
        self.program("ssh", SSH)
        t.defer(self.end_server)

    def program(self, name, text):
        """A program that comes before those of the machine."""
        path = self.programs / name
        path.write_text(text.replace("TOP", str(self.top)))
        path.chmod(0o755)

    def section(self, heading):
        """A section, tables and all."""
        return re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", self.text, re.MULTILINE | re.DOTALL).group(1)

    def lines(self, heading, before=None, after=None):
        """The indented lines of a section; those before, or those after, the one that is named."""
        lines = [line[4:] for line in self.section(heading).splitlines() if line.startswith("    ")]
        self.t.expect(lines, f"the section '{heading}' has no commands")
        start = lines.index(after) + 1 if after else 0
        return lines[start:lines.index(before) if before else None]

    def spans(self, heading):
        """Commands in the tables of a section."""
        rows = [line for line in self.section(heading).splitlines() if line.startswith("|")]
        return [span for row in rows for span in re.findall(r"`(shale [^`]+)`", row)]

    def type(self, *lines, status=0):
        """Pastes lines into one shell, in which each of them must succeed; returns their output."""
        script = self.here("\n".join(lines))
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        self.t.log(f"$ {script}")
        done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", script], cwd=self.t.dir, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800, check=False)
        self.t.log(done.stdout[-4000:].rstrip())
        self.t.equal(done.returncode, status, f"exit status of the guide's lines, which ended with {done.stdout.strip()[-300:]!r}")
        return done.stdout

    def here(self, text):
        """A text of the guide with the paths of the test, and a server that takes less memory."""
        return PATHS.sub(rf"{self.top}\1", text).replace('memory = "1G"', 'memory = "128M"')

    def end_server(self):
        """The server is gone afterwards."""
        status = self.t.run(BINARY, "status", self.top / "srv/pool", "--json", status=None, quiet=True).stdout
        status = json.loads(status or "{}")
        if status.get("served"):
            self.t.run("kill", status["pid"])
            self.t.run("timeout", READY_SECONDS_MAX, "tail", f"--pid={status['pid']}", "-f", "/dev/null")
