"""fsspec's own suite for implementations, on each kind of store that is here."""

import uuid

import fsspec
import fsspec.tests.abstract as abstract
import pytest


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def supports_empty_directories(self):
        return False

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)


class InMemory(Fixtures):
    @pytest.fixture
    def fs(self):
        return fsspec.filesystem("shale+memory")

    @pytest.fixture
    def fs_path(self):
        return uuid.uuid4().hex


class InADirectory(Fixtures):
    @pytest.fixture
    def fs(self):
        return fsspec.filesystem("shale+file")

    @pytest.fixture
    def fs_path(self, tmp_path):
        return str(tmp_path / "blobs")


class OnS3(Fixtures):
    @pytest.fixture
    def fs(self, server):
        return fsspec.filesystem("shale+s3")

    @pytest.fixture
    def fs_path(self, server):
        return f"bucket/{uuid.uuid4().hex}"


class TestMemoryCopy(abstract.AbstractCopyTests, InMemory): pass
class TestMemoryGet(abstract.AbstractGetTests, InMemory): pass
class TestMemoryPut(abstract.AbstractPutTests, InMemory): pass
class TestMemoryPipe(abstract.AbstractPipeTests, InMemory): pass
class TestMemoryOpen(abstract.AbstractOpenTests, InMemory): pass
class TestFileCopy(abstract.AbstractCopyTests, InADirectory): pass
class TestFileGet(abstract.AbstractGetTests, InADirectory): pass
class TestFilePut(abstract.AbstractPutTests, InADirectory): pass
class TestFilePipe(abstract.AbstractPipeTests, InADirectory): pass
class TestFileOpen(abstract.AbstractOpenTests, InADirectory): pass
class TestS3Copy(abstract.AbstractCopyTests, OnS3): pass
class TestS3Get(abstract.AbstractGetTests, OnS3): pass
class TestS3Put(abstract.AbstractPutTests, OnS3): pass
class TestS3Pipe(abstract.AbstractPipeTests, OnS3): pass
class TestS3Open(abstract.AbstractOpenTests, OnS3): pass
