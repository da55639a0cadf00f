"""Storing a set on a share: seconds, CPU time, joules, and what it takes."""

from contextlib import contextmanager

import zfs_sets
from lab.share import Shares

# The thesis' modes, and ours between them.
MODES = ["performance", "energy", "balanced", "archive"]


def properties(setting):
    """A setting's properties: a codec, or `auto MODE`."""
    kind, _, mode = setting.partition(" ")
    return {"compression": "auto", "mode": mode} if kind == "auto" else {"compression": setting}


@contextmanager
def shares(lab, disk, wanted, size, cpus=None, **pool_properties):
    """A served pool with these shares, {name: properties}."""
    lab.say(f"{disk.name}: " + "; ".join(f"{n} {' '.join(f'{k}={v}' for k, v in p.items())}" for n, p in list(wanted.items())[:3]) + (" ..." if len(wanted) > 3 else ""))
    with Shares(lab, disk, wanted, size=size, cpus=cpus, pool_properties=pool_properties) as place:
        yield place


def copy(place, source, target):
    """Copies a file, or all below a directory, as a program of the load."""
    if source.is_dir():
        place.run(["cp", "-r", "--no-preserve=all", f"{source}/.", target])
    else:
        place.run(["cp", "--no-preserve=all", source, target])


def store(lab, place, energy, name, source, target=None):
    """Copies `source` to a share and tells what that cost until it was durable, and what it takes."""
    with energy, place.meter() as meter:
        copy(place, source, target or place.at(name))
    figures = meter.figures()
    cpu = figures["load_cpu_s"] + figures["server_cpu_s"]
    total = place.usage(name)["total"]
    size = zfs_sets.size_of(source)[1] if source.is_dir() else source.stat().st_size
    return {"files": total["files"], "bytes": size, "stored": total["stored_bytes"], "ratio": round(size / max(total["stored_bytes"], 1), 4),
            "saving_percent": round(100 * (1 - total["stored_bytes"] / size), 2), "seconds": figures["durable_seconds"], "cpu_s": round(cpu, 3),
            "server_cpu_s": figures["server_cpu_s"], "joules": round(energy.joules(cpu), 1), "disk_written_bytes": figures["disk_written_bytes"]}


def room(size, sets=1):
    """Size of a pool for so many bytes of data, several times over."""
    return size * sets + (256 << 20)
