"""Writes, appends, tags a version, and reads old ones. Takes the URL of a blob that it may create."""

import sys

import fsspec

import shale

url = sys.argv[1] if len(sys.argv) > 1 else "shale+memory://examples/versions"

with fsspec.open(url, "wb") as file:
    file.write(b"one, two")
blob = shale.Blob(url)
print("appended at", blob.append(b", three").offset)
blob.tag("good", at=1)
blob.write(0, b"ONE")
for entry in blob.versions():
    print("version", entry["version"], entry["size"], "bytes", blob.read(at=entry["version"]))
print("good:", fsspec.open(f"{url}@good").open().read())
assert blob.read() == b"ONE, two, three"
