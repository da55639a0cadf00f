#!/usr/bin/python3 -B
"""Reads a disk over NBD as a machine did when it booted: the traffic of a boot, without the time that the machine computed.

    replay.py URI READS.csv [FILE]

READS.csv is of `tools/guest boot --reads`. The requests go out in the machine's order, and none before those are answered whose answers the machine had
when it sent it: so as many are under way as were then. Prints the seconds that it took, and the bytes.
With FILE, each answer is compared with what is there in that file, and a difference ends the replay with exit status 1.
"""

import csv
import json
import sys
import time

import nbd


def main():
    uri, reads = sys.argv[1:3]
    content = open(sys.argv[3], "rb") if len(sys.argv) > 3 else None  # open until the end
    with open(reads, newline="", encoding="ascii") as file:
        events = [(row["event"], int(row["number"]), int(row["offset"] or 0), int(row["bytes"] or 0)) for row in csv.DictReader(file)]
    disk = nbd.NBD()
    disk.connect_uri(uri)
    under_way, total = {}, 0
    began = time.monotonic()

    def finish(number):
        cookie, buffer, offset = under_way.pop(number)
        while not disk.aio_command_completed(cookie):
            disk.poll(-1)
        if content:
            content.seek(offset)
            found = buffer.to_bytearray()
            if found != content.read(len(found)):
                raise SystemExit(f"replay: the {len(found)} bytes from byte {offset} on are not those of {sys.argv[3]}")

    for event, number, offset, count in events:
        if event == "read":
            buffer = nbd.Buffer(count)
            under_way[number] = (disk.aio_pread(buffer, offset), buffer, offset)
            total += count
        else:
            finish(number)
    for number in list(under_way):
        finish(number)
    print(json.dumps({"seconds": round(time.monotonic() - began, 3), "bytes": total}))
    disk.shutdown()


main()
