"""Mount namespaces beside other tests.

A new mount namespace has copies of all mounts of the machine, and a copy keeps a file system in use after its owner has unmounted it: fsck then
finds the device busy, or the log dirty.
"""

import errno
import os
import re
import time
from pathlib import Path

# Shell, to be run in a new namespace: forgets the mounts of others in the directories for temporary files. $own: the directory of the test.
LEAVE_OTHERS = r"""mount --make-rprivate /
cut -d ' ' -f 5 /proc/self/mountinfo | sort -r | while read -r point; do
    point=$(printf '%b' "$point")
    case "$own/" in "$point"/*) continue ;; esac
    case "$point" in "$own"/*) ;; /tmp/*|/var/tmp/*|"${own%/*}"/*) umount --lazy "$point" || : ;; esac
done
"""


def mount_table():
    """(mount point, number of the device, kind, source) of each mount, the newest last."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        # Blanks and the like stand as octal numbers there.
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), words[4])
        kind, source = words[words.index("-") + 1:][:2]
        found.append((point, words[2], kind, source))
    return found


def source_of(directory):
    """The block device that is mounted on a directory; None if it is another kind of mount."""
    sources = [Path(source) for point, _, _, source in mount_table() if point == str(directory)]
    return sources[-1] if sources and sources[-1].is_block_device() else None


def is_in_use(device):
    """Whether a file system, in whatever namespace, has the device."""
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def wait_until_unused(device, seconds_max=60):
    """Waits for the copies of a mount in namespaces that are just coming or going; whether there are none left."""
    end = time.monotonic() + seconds_max
    while is_in_use(device):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
