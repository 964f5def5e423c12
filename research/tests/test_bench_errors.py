"""Wrong commands end with one clear line, before anything is measured."""

import re

import pytest
from support_bench import QUICK, reading, run, write_people


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("USERDP_DATA", "nowhere")
    write_people(tmp_path / "people.parquet")
    (tmp_path / "other.json").write_text("{}")
    return tmp_path


FILE = reading("people.parquet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["real", *reading("none.parquet")], "There is no "),
        (["real", *FILE, "--target", "z"], "No column is named 'z'"),
        (["real", *FILE, "--user", "z"], "No column is named 'z'"),
        (["real", *FILE, "--fold", "z"], "No column is named 'z'"),
        (["real", *FILE, "--features", "z_*"], "No column matches 'z_*'"),
        (["real", *FILE, "--solvers", "magic"], "--solvers among not-private, oracle, auto"),
        (["real", *FILE, "--solvers", ","], "name one at least"),
        (["real", *FILE, "--epsilon", "0"], "epsilon=0.0 to be finite and > 0"),
        (["real", *FILE, "--epsilon", "one"], "--epsilon to be numbers"),
        (["real", *FILE, "--delta", "2"], "0 <= delta=2.0 < 1"),
        (["real", *FILE, "--users", "some"], "--users to be numbers"),
        (["real", *FILE, "--users", "0"], "--users to be whole numbers >= 1"),
        (["real", *FILE, "--users", "1000000"], "use --users all"),
        (["real", *FILE, "--passes", "0"], "--passes to be whole numbers >= 1"),
        (["real", *FILE, "--repeats", "0"], "--repeats to be whole numbers >= 1"),
        (["real", *FILE, "--workers", "0"], "--workers to be whole numbers >= 1"),
        (["real", *FILE, "--row-norm", "0"], "--row-norm 0.0"),
        (["real", *FILE, "--out", "other.json"], "choose another file"),
        (["real", *FILE, "--out", "none/r.json"], "There is no folder none"),
        (["real", *FILE, "--rows", "1,0"], "--rows to be whole numbers >= 1"),
        (["real", *FILE, "--rows", "few"], "--rows to be numbers"),
        (["real"], "USERDP_DATA"),
        (["real", "--tasks", "magic"], "--tasks among openpowerlifting, online_retail"),
        (["grid", "--only", "magic"], "--only among few-weights"),
        (["grid", "--solvers", "oracle"], "--solvers among not-private, auto"),
        (["grid", "--sizes", "1,0"], "--sizes to be whole numbers >= 1"),
        (["grid", "--cap", "0"], "--cap to be whole numbers >= 1"),
        (["grid", "--epsilon", "0"], "epsilon=0.0 to be finite and > 0"),
        (["real", "--target", "y"], "--data with --target"),
        (["real", "--data", "people.parquet"], "Expected --target"),
        (["table", "--solvers", "oracle"], "--solvers among auto"),
        (["table", "--users", "1,x"], "--users to be numbers"),
        (["peers", "--peers", "nowhere"], "run.py and requirements.txt"),
        (["plot", "none.json", "--out", "pictures"], "found nothing there"),
        (["plot", "other.json", "--out", "pictures"], "choose another file"),
    ],
)
def test_wrong_commands(folder, arguments, message):
    before = sorted(folder.iterdir())
    quick = QUICK if arguments[0] == "real" else ()
    # Later options win.
    result = run(arguments[0], *quick, *arguments[1:])
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert re.match("userdp: (?!Internal error)", result.stderr), result.stderr
    assert result.stderr.count("\n") == 1
    assert message in result.stderr, result.stderr
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("arguments", [["nonsense"], ["real", "--repeats", "x"], ["plot"]])
def test_wrong_usage(arguments):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")


def test_help_says_that_nobody_is_protected():
    result = run("real", "--help")
    assert result.exit_code == 0
    assert "Protected: nobody" in result.stdout
