"""Real processes with real threads of C++ that let an exception out."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
#include <stdexcept>
#include <thread>
namespace gloo { struct IoException : std::runtime_error { using runtime_error::runtime_error; }; }
extern "C" void gloo_fails() { throw gloo::IoException("writev: Connection reset by peer"); }
extern "C" void other_fails() { throw std::runtime_error("something else"); }
extern "C" void in_thread(void (*fails)()) { std::thread(fails).detach(); }
"""
BODY = """
import ctypes, logging, sys, time
from gbactl.collective.gloo import survive_thread_errors
logging.basicConfig()
library = ctypes.CDLL(sys.argv[1])
survive_thread_errors()
survive_thread_errors()
{call}
time.sleep(0.5)
print("alive")
"""
COMPILER = shutil.which("c++") or shutil.which("g++")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "fails.cpp").write_text(SOURCE)
    made = folder / "fails.so"
    subprocess.run([COMPILER, "-fPIC", "-shared", "-pthread", "-o", made, folder / "fails.cpp"], check=True, timeout=60)
    return made


def ran(library: Path, call: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BODY.format(call=call), str(library)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_thread_of_gloos_that_loses_its_connection_ends_nothing(library: Path) -> None:
    done = ran(library, "library.in_thread(library.gloo_fails)")
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
    assert "a thread of Gloo's lost its connection (N4gloo11IoExceptionE) and stands still" in done.stderr


@pytest.mark.parametrize("call", ["library.in_thread(library.other_fails)", "library.gloo_fails()"])
def test_whatever_else_is_let_out_ends_the_process_as_ever(library: Path, call: str) -> None:
    """Another exception; one of the thread that would act on the error."""
    done = ran(library, call)
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "")
    assert "terminate called after throwing an instance of" in done.stderr
