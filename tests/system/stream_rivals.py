"""Two receivers of one difference at once: what the one that is cut off is told, and that its advice harms no one."""

import subprocess

from harness import Pool, test
from harness.data import random_file
from harness.pool import BINARY, EXIT

MIB = 1 << 20


class Receiver:
    """`shale receive` that is fed by the test."""

    def __init__(self, t, pool, content):
        self.content, self.sent = content, 0
        self.process = subprocess.Popen([BINARY, "receive", pool.path, "vol"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)
        t.defer(self.process.kill)

    def feed(self, to):
        """Gives it the stream up to a byte."""
        self.process.stdin.write(self.content[self.sent:to])
        self.process.stdin.flush()
        self.sent = to

    def end(self, rest=None):
        """Its exit status and what it said, once its input has ended, behind the rest of the stream."""
        _, said = self.process.communicate(rest, timeout=120)
        return self.process.returncode, said.decode()


@test()
def stream_rivals_are_told_the_truth(t):
    """A receiver that is cut off beside another one is told how to give up what has come, which never takes what is complete; or that all is here"""
    source, target = Pool(t, "source", capacity="256M"), Pool(t, "target", capacity="256M")
    source.shale("import", "vol", random_file(t.dir / "one", 12 * MIB, seed=1))
    source.shale("snapshot", "vol@a")
    source.shale("import", "--overwrite", "vol", random_file(t.dir / "two", 12 * MIB, seed=2))
    source.shale("snapshot", "vol@b")
    for name, since in [("a", ()), ("b", ("--from", "a"))]:
        source.shale("send", f"vol@{name}", *since, "-o", t.dir / name)
    server = target.serve()
    target.shale("receive", "vol", "-i", t.dir / "a")
    stream = (t.dir / "b").read_bytes()
    receivers = [Receiver(t, target, stream) for _ in range(4)]
    for receiver in receivers:
        receiver.feed(8 * MIB)
    t.wait_for(lambda: any(one["received_bytes"] > MIB for one in target.status()["receives"]), "a part of the stream")
    status, said = receivers[0].end()
    t.equal(status, EXIT["io"], f"exit status of the one that is cut off: {said}")
    t.expect("'shale destroy --partial POOL vol@b'" in said and "--resume" in said, f"what it says: {said}")
    receivers[1].feed(len(stream))
    t.equal(receivers[1].end()[0], 0, "exit status of the one that gets all")
    # The advice is followed late: what is complete stays.
    refused = target.shale("destroy", "--partial", "vol@b", status=EXIT["exists"])
    t.expect("'vol@b' is complete" in refused.stderr, f"why not: {refused.stderr}")
    # Cut off only now.
    status, said = receivers[2].end()
    t.expect(status != 0 and "destroy" not in said, f"advice of the last one: {said}")
    t.expect("another receive has completed 'vol@b'" in said, f"what the last one says: {said}")
    # This one brings more of it only now.
    status, said = receivers[3].end(stream[receivers[3].sent:])
    t.expect(status != 0, f"exit status of the one that comes late: {said}")
    t.expect("'vol@b'" in said and "nothing is left to do" in said, f"what the one that comes late says: {said}")
    t.expect("given up" not in said, f"it contradicts itself: {said}")
    # What is not complete goes.
    (t.dir / "part").write_bytes((t.dir / "a").read_bytes()[:8 * MIB])
    target.shale("receive", "new", "-i", t.dir / "part", status=EXIT["io"])
    target.shale("destroy", "--partial", "new")
    t.equal(target.status()["receives"], [], "what is being received")
    target.shale("destroy", "--partial", "never", status=EXIT["not-found"])
    target.shale("destroy", "vol@b")
    server.stop()
    target.check()
