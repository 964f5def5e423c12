"""The program itself, in a process of its own: on a terminal, in a pipe, and stopped by Ctrl-C."""

import os
import pty
import signal
import subprocess
import sys

import pytest
from support_cli import BUDGET, COLUMNS, run

from userdp import Budget, Ledger, cli

PROGRAM = [sys.executable, "-m", "userdp"]
# Data is read for ten minutes, and said to be: by then the plan is charged.
SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
from userdp.engines.local import LocalEngine
def slowly(self, *_):
    print("reading", flush=True)
    for _ in range(6000):  # a signal that comes just before a sleep is noticed only after it
        time.sleep(0.1)
LocalEngine.vectors = LocalEngine.total = slowly
from userdp.cli import main
main()
"""


def arguments(files, output):
    return [str(a) for a in ("fit", files / "data.parquet", *COLUMNS, *BUDGET, "--target", "flag", "-o", output)]


def test_a_progress_bar_on_a_terminal(files, tmp_path):
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="100")
        os.execv(sys.executable, [*PROGRAM, *arguments(files, tmp_path / "m.json")])
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    text = shown.decode()
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert "planning" in text
    assert "━" in text  # the bar
    assert "for each of 600 users" in text


def test_quiet_in_a_pipe(files, tmp_path):
    command = [*PROGRAM, *arguments(files, tmp_path / "m.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "for each of 600 users" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_ctrl_c_says_what_was_spent_and_leaves_nothing_half_written(files, tmp_path):
    ledger = tmp_path / "l.db"
    Ledger(Budget(9.0, 1e-5), ledger)
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SLOW,
            *arguments(files, tmp_path / "m.json"),
            "--ledger",
            ledger,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "reading\n"
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate(timeout=300)
    finally:
        child.kill()  # nothing is left to others if this fails
    assert child.returncode == 130
    assert out == ""
    assert errors.count("\n") == 1
    assert errors.startswith(
        "userdp: Stopped. The plan was charged before data was read: epsilon 4 at delta 1e-06 is spent"
    )
    assert "No model was written." in errors
    assert [p.name for p in tmp_path.iterdir()] == ["l.db"]
    assert len(Ledger.open(ledger).charges()) == 1


def test_help_names_every_command_by_its_own_first_line_without_loading_it():
    """Short words stand beside the names, so that nobody waits for what was not asked for."""
    for name, (_, words) in cli._COMMANDS.items():
        assert cli._loaded(name).help.split("\n")[0] == words
    heavy = "import sys, userdp.cli; assert not {'sklearn', 'scipy', 'pyarrow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", heavy], check=True)


@pytest.mark.parametrize("name", list(cli._COMMANDS))
def test_every_command_has_its_own_help(name):
    assert "Example" in run(name, "--help").output
