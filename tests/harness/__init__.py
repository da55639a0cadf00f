"""What the system tests stand on: registration, guards, the binary under test, data. Owns no test."""

from harness import damage, data
from harness.context import Context, TestFailed
from harness.pool import EXIT, Pool, Server
from harness.registry import test

__all__ = ["EXIT", "Context", "Pool", "Server", "TestFailed", "damage", "data", "test"]
