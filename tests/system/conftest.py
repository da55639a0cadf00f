"""How pytest runs the system tests: selection, and a directory, a log and a clean-up for each test.

Each worker of pytest-xdist is a session of its own, so that the processes that a test starts are
found. After a test, processes, mounts and loop devices that it left are removed, and count as a
failure; the controller does so for a test whose worker died.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from unittest import mock

import pytest

from harness.context import Context
from harness.pool import BINARY, ROOT
from harness.sweep import sweep

LOGS = ROOT / "target" / "system"
LOG_LINES_SHOWN = 40
# The variable that tells the workers the parent of the tests' directories.
BASE = "SYSTEM_TESTS_DIR"


def pytest_addoption(parser):
    parser.addoption("--only", metavar="REGEX", default="", help="tests whose name matches")
    parser.addoption("--soak", action="store_true", help="the long tests instead of the usual ones")
    parser.addoption("--keep", action="store_true", help="keep the directories of the tests")


def pytest_xdist_auto_num_workers(config):
    # The long tests load the machine fully, and some report how fast it was.
    # Most tests wait more than they compute: one more than there are CPUs.
    return 1 if config.option.soak else min(4, (os.cpu_count() or 1) + 1)


def pipes_of_worker():
    """Descriptors of the connection to the controller, before any test has opened others."""
    names = {int(path.name): os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    return [number for number, name in names.items() if number > 2 and name.startswith("pipe:")]


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        os.setsid()
        # The progress that pytest writes in a worker must not get into the logs of tests. The
        # former stream must stay open: its descriptor is that of the standard output.
        config.add_cleanup(sys.stdout.close)
        sys.stdout = open(os.devnull, "w")
        # The controller notices a dead worker by the end of its pipes, which forked children
        # must not keep open.
        pipes = pipes_of_worker()
        os.register_at_fork(after_in_child=lambda: [os.close(number) for number in pipes])
        return
    if config.option.collectonly:
        return
    if os.geteuid() != 0:
        raise pytest.UsageError("the system tests need root, for loop devices and mounts")
    if not os.access(BINARY, os.X_OK):
        raise pytest.UsageError(f"{BINARY} is missing: run 'make build' first")
    LOGS.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="shale-tests.", dir=os.environ.get("TMPDIR", "/var/tmp"))).resolve()
    # Programs of other users work in directories of tests.
    os.chmod(base, 0o755)
    os.environ[BASE] = str(base)
    # Like an interrupt: the clean-up runs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_unconfigure(config):
    if hasattr(config, "workerinput") or BASE not in os.environ:
        return
    sweep_abandoned("*", config.option.keep)
    if config.option.keep:
        print(f"kept: {os.environ[BASE]}")
    else:
        subprocess.run(["rmdir", "--ignore-fail-on-non-empty", os.environ[BASE]], check=False)


def pytest_collection_modifyitems(config, items):
    def is_chosen(item):
        is_soak = item.get_closest_marker("soak") is not None
        return is_soak == config.option.soak and re.search(config.option.only, item.name)

    chosen = list(filter(is_chosen, items))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def sweep_abandoned(name, keep):
    """Cleans up after tests whose worker did not get to it. `name` may be a pattern."""
    for session in Path(os.environ[BASE]).glob(f"{name}.session"):
        sweep(session.with_suffix(""), int(session.read_text()), keep)
        session.unlink()


@contextlib.contextmanager
def output_to(log):
    """Sends the output of this process, and of those it starts, to a file of its own."""
    log.unlink(missing_ok=True)
    before = [os.dup(1), os.dup(2)]
    with open(log, "a", buffering=1) as file, contextlib.redirect_stdout(file):
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            for number, descriptor in enumerate(before, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)


@pytest.fixture
def t(request):
    """The Context of one test."""
    name, base = request.node.name, Path(os.environ[BASE])
    directory, session = base / name, base / f"{name}.session"
    session.write_text(str(os.getpid()))
    directory.mkdir(mode=0o700)
    with output_to(LOGS / f"{name}.log"):
        context = Context(directory)
        try:
            with mock.patch.dict(os.environ), contextlib.closing(context):
                yield context
        finally:
            left = sweep(directory, os.getpid(), request.config.option.keep)
            session.unlink()
    # A test may have changed the time zone.
    time.tzset()
    if left:
        pytest.fail(f"left behind: {', '.join(left)}", pytrace=False)


def end_of_log(name):
    """The log's path and its last lines, as a section of a report."""
    log = LOGS / f"{name}.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    return f"end of {log}", "\n".join(text.splitlines()[-LOG_LINES_SHOWN:])


def release_variables(failure):
    """Drops the variables of a failed test, whose open files would keep its mounts busy."""
    traceback.clear_frames(failure)
    for frame, _ in traceback.walk_tb(failure):
        # pytest has looked at the variables: the frame keeps a copy of them, which the next look
        # updates.
        _ = frame.f_locals


def place_in(file, failure):
    """The last line of a test's own file that a failure came through, as a prefix of its message."""
    lines = [line for frame, line in traceback.walk_tb(failure) if frame.f_code.co_filename == str(file)]
    return f"{file.name}:{lines[-1]}: " if lines else ""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call":
        report.user_properties += [("note", note) for note in item.funcargs["t"].notes]
    if report.failed:
        report.sections.append(end_of_log(item.name))
        # The message is what the summary shows, which may be all that is known of another machine.
        if crash := getattr(report.longrepr, "reprcrash", None):
            crash.message = place_in(item.path, call.excinfo.tb) + crash.message
    error = call.excinfo and call.excinfo.value
    while error:
        release_variables(error.__traceback__)
        error = error.__context__


def pytest_handlecrashitem(crashitem, report):
    name = crashitem.split("::")[-1]
    sweep_abandoned(name, keep=False)
    # Of the stacks that pytest-timeout writes before it ends the process, the innermost frame of a test.
    frame = r'File "\S*(tests/system/(?!conftest)\S+)", line (\d+), in (\w+)\n +(.*)'
    waits = re.findall(frame, (LOGS / f"{name}.log").read_text(errors="replace"))
    where = "at {}:{}, in {}: {}".format(*waits[-1]) if waits else report.longrepr
    report.longrepr = f"ended by its time limit, or died: {where}"
    report.sections.append(end_of_log(name))


def pytest_report_teststatus(report):
    if report.when == "call" and report.outcome in {"passed", "failed"}:
        return report.outcome, "." if report.passed else "F", f"{report.outcome.upper()} ({report.duration:.0f} s)"
    return None


def pytest_terminal_summary(terminalreporter):
    terminalreporter.section("notes")
    for report in terminalreporter.getreports("passed"):
        for _, note in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {note}")
