"""The README's commands as a user types them: through the real `sudo`, with rustup in the user's home; and as root without it.

A user, the right to use sudo and the Debian packages exist in a mount namespace of the test alone: files of the test lie over
those of the machine there, and are gone with it. Cargo and what the commands lead to (the demo, the gate) are stand-ins, which
fail as rustup does where it cannot find its toolchain, and write down who ran them.
"""

import os
import re
import shutil

from harness import test
from harness.namespaces import LEAVE_OTHERS
from harness.pool import BINARY, ROOT

USER = "shale-reader"
UID = 61234
# Where sudo looks for programs if the machine's own sudoers do not say: never in a home.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What must be on the machine, and where it is found first there.
STAND_IN = """#!/bin/bash
set -eu
# As rustup does: without its own directory it knows no toolchain.
[[ -e ${RUSTUP_HOME:-$HOME/.rustup}/settings.toml ]] || { echo 'rustup could not choose a version to run' >&2; exit 1; }
name=${0##*/}
echo "$name $* as $(id -u)" >>NOTES
case "$name $*" in
rustc*) echo 'rustc VERSION (stand-in)' ;;
'cargo build '*) mkdir -p target/release; cp BINARY target/release/shale ;;
*) echo "$name VERSION" ;;
esac
"""
LED_TO = """#!/bin/bash
set -eu
echo "$0 as $(id -u) with $(command -v cargo)" >>NOTES
[[ $0 == demo/* ]] || { mkdir -p target/made; cargo --version >target/made/by-the-gate; }
"""
# In the namespace: $1 is the test's directory, $2 a line, $3 who types it.
TYPED = f"""
set -eu
own=$1
{LEAVE_OTHERS}cp -a "$1/root" "$1/root-now"
mount --bind "$1/root-now" /root
for file in passwd shadow group sudoers; do mount --bind "$1/$file" "/etc/$file"; done
mount --bind "$1/dpkg-query" "$(command -v dpkg-query)"
if [ "$3" = root ]; then
    cd "$1/home/shale"
    exec env -i HOME=/root PATH=SECURE_PATH bash -c "$2"
fi
exec runuser -l USER -c "cd shale && $2"
"""


def program(path, text):
    """Writes a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def make_user(t, notes):
    """The user, the toolchain in the homes of user and root, and a checkout."""
    entries = {"passwd": f"{USER}:x:{UID}:{UID}::{t.dir}/home:/bin/bash", "shadow": f"{USER}:*:20000:0:99999:7:::",
               "group": f"{USER}:x:{UID}:", "sudoers": f"{USER} ALL=(ALL) NOPASSWD: ALL"}
    for name, entry in entries.items():
        shutil.copy2(f"/etc/{name}", t.dir / name)
        with open(t.dir / name, "a", encoding="utf-8") as file:
            file.write(f"\n{entry}\n")
    (t.dir / "sudoers").chmod(0o440)
    program(t.dir / "dpkg-query", "#!/bin/sh\necho installed\n")
    t.run("cp", "--reflink=auto", BINARY, t.dir / "binary")
    version = re.search(r"RUST_VERSION_MIN=(\S+)", (ROOT / "tools/setup").read_text())[1]
    stand_in = STAND_IN.replace("NOTES", str(notes)).replace("VERSION", version).replace("BINARY", str(t.dir / "binary"))
    for home in [t.dir / "home", t.dir / "root"]:
        for name in ["cargo", "rustc", "rustup", "cargo-clippy", "rustfmt"]:
            program(home / ".cargo/bin" / name, stand_in)
        (home / ".rustup").mkdir()
        (home / ".rustup/settings.toml").touch()
    (t.dir / "home/.profile").write_text('PATH="$HOME/.cargo/bin:$PATH"\n')
    checkout = t.dir / "home/shale"
    checkout.mkdir()
    shutil.copy(ROOT / "Makefile", checkout)
    shutil.copytree(ROOT / "tools", checkout / "tools", ignore=shutil.ignore_patterns("paper", "fuzz", "__pycache__"))
    # Nothing is installed for the page's tests, which are not in this checkout.
    (checkout / "tests/page").mkdir(parents=True)
    (checkout / "tests/page/requirements.txt").touch()
    for name in ["demo/run", "tools/gate"]:
        program(checkout / name, LED_TO.replace("NOTES", str(notes)))
    notes.touch()
    notes.chmod(0o666)
    t.dir.chmod(0o711)
    t.run("chown", "-R", f"{UID}:{UID}", t.dir / "home")
    return checkout


def typed(t, notes, line, who=USER):
    """Types a line in the checkout; returns what the stand-ins wrote down."""
    shutil.rmtree(t.dir / "root-now", ignore_errors=True)
    notes.write_text("")
    script = t.dir / "typed"
    script.write_text(TYPED.replace("SECURE_PATH", PATH).replace("USER", USER))
    t.run("unshare", "--mount", "bash", script, t.dir, line, who)
    return notes.read_text().splitlines()


@test(seconds_max=300)
def readme_under_sudo(t):
    """the README's commands through the real sudo find rustup in the user's home, and leave nothing in the checkout that is root's"""
    if not shutil.which("sudo"):
        t.note("nothing was tried: sudo is not installed (tools/setup test installs it)")
        return
    notes = t.dir / "notes"
    checkout = make_user(t, notes)
    lines = re.findall(r"^    ((?:.*&& )?sudo make [a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    wanted = ["make build && sudo make install", "sudo make demo", "sudo make test"]
    t.equal(lines, wanted, "the lines of the README with sudo, of which this test knows what they must come to")
    cargo = f"{t.dir}/home/.cargo/bin/cargo"

    def is_the_users(line):
        others = [str(path.relative_to(checkout)) for path in checkout.rglob("*") if os.lstat(path).st_uid != UID]
        t.equal(others[:5], [], f"what '{line}' left in the checkout that is not the user's")

    said = typed(t, notes, "sudo make demo")
    t.expect(any(note.startswith("cargo build --release") and note.endswith("as 0") for note in said), f"root built: {said}")
    t.expect(f"demo/run as 0 with {cargo}" in said, f"the demo ran as root, with the user's cargo: {said}")
    is_the_users("the build of sudo make demo")
    said = typed(t, notes, "sudo make test")
    t.expect(f"tools/gate as 0 with {cargo}" in said, f"the gate ran as root, with the user's cargo: {said}")
    is_the_users("sudo make test")
    said = typed(t, notes, f"make build && sudo make install DESTDIR={t.dir}/installed")
    built = [note.rsplit(" ", 1)[1] for note in said if note.startswith("cargo build")]
    t.equal(built, [str(UID)], "who built: the user, and root only copies")
    is_the_users("sudo make install")
    version = t.out(t.dir / "installed/usr/local/bin/shale", "--version")
    t.expect(version.startswith("shale "), f"the installed program is '{version}'")
    t.expect((t.dir / "installed/usr/local/share/man/man1/shale.1").exists(), "the manual is not installed")
    typed(t, notes, f"sudo make uninstall DESTDIR={t.dir}/installed")
    left = [str(path) for path in (t.dir / "installed").rglob("*") if not path.is_dir()]
    t.equal(left, [], "files that make uninstall leaves")
    # After all of that the user goes on without sudo.
    typed(t, notes, "make man completions")
    # A shell of root, which has not read what rustup wrote into root's profile.
    shutil.rmtree(checkout / "target")
    said = typed(t, notes, "make build && make test", "root")
    t.expect("tools/gate as 0 with /root/.cargo/bin/cargo" in said, f"root used root's own cargo: {said}")
