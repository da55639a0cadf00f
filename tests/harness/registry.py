"""The list of tests: a decorator, and what it remembers. Owns nothing else."""

import contextlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Callable


@dataclass(frozen=True)
class Test:
    """One test."""

    name: str
    function: Callable
    # Seconds after which it is ended: a bound against hanging, many times what it takes, also on a machine that is slow and busy.
    seconds_max: int
    # Only in `make soak`.
    soak: bool
    summary: str
    # The tests that need the machine set up in one way: a key of GROUPS.
    group: str


TESTS = {}
# What sets the machine up for a group of tests, and puts it back: functions that return a context manager.
GROUPS = {"": contextlib.nullcontext}


def test(seconds_max=600, soak=False, group=""):
    """Registers a function that takes a Context. Its name is the test's, the first line of its text the summary."""

    def register(function):
        name = function.__name__
        if name in TESTS:
            raise RuntimeError(f"two tests are called {name}")
        TESTS[name] = Test(name, function, seconds_max, soak, (function.__doc__ or "").strip().splitlines()[0], group)
        return function

    return register


def load_all():
    """Imports every module of tests/system, which registers what is in it."""
    for path in sorted((Path(__file__).parent.parent / "system").glob("*.py")):
        importlib.import_module(f"system.{path.stem}")
    return TESTS
