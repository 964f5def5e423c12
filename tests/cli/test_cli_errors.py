"""Wrong input of all kinds: one line on stderr, exit code 1, nothing written, nothing spent, no cell quoted."""

import contextlib
import os
import re

import numpy as np
import pyarrow as pa
import pytest
from support_cli import BUDGET, COLUMNS, SECRET, people, run

from userdp import Budget, Ledger
from userdp.cli import errors
from userdp.cli.errors import InputError, guarded, in_options, line_of, spending
from userdp.data.tables import write_table
from userdp.privacy.statement import AffectedUsers


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with good and bad files, and a ledger that must stay untouched."""
    path = tmp_path_factory.mktemp("wrong")
    with contextlib.chdir(path):
        fill(path)
    return path


@pytest.fixture
def folder(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


def fill(tmp_path):
    kept = people(60)
    good = pa.table(kept)
    for suffix in ("csv", "parquet", "arrow"):
        write_table(good, f"good.{suffix}")
        open(f"empty.{suffix}", "w").close()
        write_table(good.slice(0, 0), f"norows.{suffix}")
        os.mkdir(f"folder.{suffix}")
        write_table(good.slice(0, 3), f"one.{suffix}")
        write_table(pa.table(kept | {"user": [None, *kept["user"][1:]]}), f"noid.{suffix}")
        write_table(pa.table(kept | {"x_a": [f"{SECRET}-{i}" for i in range(len(good))]}), f"words.{suffix}")
        twice = pa.table([*good.columns, good["x_a"], good["user"]], names=[*good.column_names, "x_a", "user"])
        write_table(twice, f"twice.{suffix}")
    whole = (tmp_path / "good.parquet").read_bytes()
    (tmp_path / "broken.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "holes.parquet").write_bytes(whole[:40] + b"\xff" * 4000 + whole[4040:])
    (tmp_path / "broken.arrow").write_bytes((tmp_path / "good.arrow").read_bytes()[:300])
    (tmp_path / "broken.csv").write_text((tmp_path / "good.csv").read_text() + f'"{SECRET}\n')
    (tmp_path / "latin.csv").write_bytes("user,größe\n".encode("latin-1"))
    write_table(pa.table(kept | {"kind": pa.array(kept["text"]).dictionary_encode()}), "categories.parquet")
    write_table(pa.table(kept | {"day": pa.array([0] * len(good), pa.date32())}), "days.parquet")
    Ledger(Budget(9.0, 1e-5), "l.db")


FLAG = ("--target", "flag", "--classes", "false,true")


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        ("none.parquet", FLAG, "There is no Parquet file at none.parquet"),
        ("none.csv", FLAG, "There is no CSV file at none.csv"),
        ("good.txt", FLAG, " is unknown: rename it"),
        *((f"empty.{s}", FLAG, "is empty") for s in ("csv", "parquet", "arrow")),
        *((f"norows.{s}", FLAG, "table is empty|such as --classes") for s in ("csv", "parquet", "arrow")),
        *((f"folder.{s}", FLAG, "is a folder|There are no Parquet files") for s in ("csv", "parquet", "arrow")),
        *((f"one.{s}", FLAG, "n_users must be at least 2, got 1") for s in ("csv", "parquet", "arrow")),
        *((f"noid.{s}", FLAG, "user ids are missing") for s in ("csv", "parquet", "arrow")),
        *((f"words.{s}", FLAG, "column 'x_a' must be numeric") for s in ("parquet", "arrow")),
        *((f"twice.{s}", FLAG, "A feature is named twice") for s in ("csv", "parquet", "arrow")),
        *(
            (f"twice.{s}", [*FLAG, "--features", "x_b"], "More than one column is named 'user'")
            for s in ("csv", "parquet")
        ),
        *((f"broken.{s}", FLAG, ", or is damaged") for s in ("csv", "parquet", "arrow")),
        ("holes.parquet", FLAG, "not Parquet, or is damaged"),
        ("latin.csv", FLAG, "in UTF-8"),
        ("good.csv", ["--target", "none"], "No column is named 'none': available are user, x_a"),
        ("good.csv", [*FLAG, "--user-column", "who"], "No column is named 'who'"),
        ("good.csv", [*FLAG, "--features", "q_*"], "No column matches 'q_*'"),
        ("good.csv", [*FLAG, "--features", ""], "There is no feature"),
        (
            "good.csv",
            [*FLAG, "--features", "x_a,flag"],
            "'flag', the column of users or targets, is among the features",
        ),
        (
            "good.csv",
            [*FLAG, "--features", "user,x_a"],
            "'user', the column of users or targets, is among the features",
        ),
        ("good.parquet", [*FLAG, "--features", "x_a,text"], "column 'text' must be numeric"),
        ("good.csv", ["--target", "user"], "another column than --user-column"),
        ("good.csv", ["--target", "text"], "Expected --classes, all labels that column 'text' can have"),
        ("good.csv", ["--target", "flag"], "for true and false pass --classes false,true"),
        ("good.parquet", ["--target", "whole"], "Expected --classes"),
        ("categories.parquet", ["--target", "kind"], "Expected --classes"),
        ("days.parquet", ["--target", "day", "--classes", "1,2"], "text, numbers or true and false, got date32"),
        ("good.csv", ["--target", "text", "--classes", "yes"], "at least 2 different labels"),
        ("good.csv", ["--target", "text", "--classes", "yes,yes"], "at least 2 different labels"),
        ("good.csv", ["--target", "text", "--classes", "yes,,no"], "--classes to be text"),
        ("good.parquet", ["--target", "whole", "--classes", "a,b"], "--classes to be numbers, as column 'whole' holds"),
        ("good.parquet", ["--target", "whole", "--classes", "nan,1"], "--classes to be numbers"),
        ("good.parquet", ["--target", "flag", "--classes", "no,yes"], "--classes to be false,true"),
        (
            "good.csv",
            ["--target", "three", "--classes", "low,mid,top", "--loss", "hinge"],
            'Expected loss="squared_hinge" for 3 classes',
        ),
        (
            "good.csv",
            ["--target", "amount", "--loss", "squared"],
            "--target-range with --loss squared: a public lowest,highest",
        ),
        ("good.parquet", ["--target", "text", "--loss", "squared", "--target-range", "0,1"], "'text' must be numeric"),
        ("good.csv", ["--target", "amount", "--loss", "squared", "--target-range", "2,1"], "lowest,highest, got '2,1'"),
        ("good.csv", ["--target", "amount", "--loss", "squared", "--target-range", "a,b"], "two numbers with a comma"),
        ("good.csv", ["--target", "amount", "--loss", "squared", "--target-range", "1"], "two numbers with a comma"),
        (
            "good.csv",
            ["--target", "amount", "--loss", "huber", "--target-range", "0,1", "--threshold", "0"],
            "threshold",
        ),
        (
            "good.csv",
            ["--target", "amount", "--loss", "quantile", "--target-range", "0,1", "--quantile", "2"],
            "0 < --quantile 2 < 1",
        ),
        (
            "good.csv",
            ["--target", "amount", "--loss", "huber", "--target-range", "0,1", "--classes", "0,1"],
            "--classes with --loss logistic, hinge, squared_hinge only",
        ),
        (
            "good.csv",
            [*FLAG, "--target-range", "0,1"],
            "--target-range with --loss squared, huber, quantile, absolute only",
        ),
        ("good.csv", [*FLAG, "--quantile", ".5"], "--quantile with --loss quantile only"),
        ("good.csv", [*FLAG, "--epsilon", "0"], "epsilon=0.0 to be finite and > 0"),
        ("good.csv", [*FLAG, "--epsilon", "nan"], "epsilon=nan"),
        ("good.csv", [*FLAG, "--delta", "1"], "0 <= delta=1.0 < 1"),
        ("good.csv", [*FLAG, "--row-norm", "-1"], "row_norm=-1.0 to be a finite number > 0"),
        ("good.csv", [*FLAG, "--domain-radius", "0"], "radius"),
        ("good.csv", [*FLAG, "--l2", "-1"], "l2=-1.0"),
        ("good.csv", [*FLAG, "--solver", "phased-sgd", "--mode", "paper", "--l2", "1"], 'use solver="accelerated"'),
        ("good.csv", [*FLAG, "--max-rows-per-user", "0"], "max_rows_per_user must be a whole number >= 1, got 0"),
        ("good.csv", [*FLAG, "--max-gradients", "0"], "max_gradients must be a whole number"),
        ("good.csv", [*FLAG, "--max-gradients", "1"], "max_gradients=1 >= "),
        ("good.csv", [*FLAG, "--fill-missing", "inf"], "fill_missing must be a finite number in float64, got inf"),
        ("good.csv", [*FLAG, "--insecure-seed", "-1"], "insecure_seed must be a whole number >= 0"),
        ("good.csv", [*FLAG, "--solver", "magic"], "got solver='magic'"),
        ("good.csv", [*FLAG, "--mode", "magic"], "mode='magic'"),
        ("good.csv", [*FLAG, "--epsilon", ".1"], "users would do"),
        ("good.csv", [*FLAG, "--output", "none/m.json"], "There is no folder none"),
        ("good.csv", [*FLAG, "--output", "folder.csv"], "it is a folder"),
        ("good.csv", [*FLAG, "--output", "good.csv"], "would replace good.csv"),
        ("good.csv", [*FLAG, "--output", "l.db"], "would replace l.db|would replace m.json"),
        ("good.csv", [*FLAG, "--output", "/dev/null"], "no regular file"),
        ("good.csv", [*FLAG, "--output", "/proc/m.json"], "/proc/m.json cannot be written"),
        ("good.csv", [*FLAG, "--report", "m.json"], "would replace m.json"),
        ("good.csv", [*FLAG, "--report", "none/r.html"], "There is no folder none"),
        ("good.csv", [*FLAG, "--ledger", "folder.csv"], "a ledger file at folder.csv"),
        ("good.csv", [*FLAG, "--ledger", "good.csv"], "good.csv to be a ledger"),
        ("good.csv", [*FLAG, "--ledger", "new.db"], "a ledger file at new.db"),
    ],
)
def test_wrong_fits_cost_nothing(folder, stub_report, data, arguments, message):
    before = sorted(folder.iterdir())
    result = run("fit", data, *COLUMNS, *BUDGET, "--output", "m.json", "--ledger", "l.db", *arguments)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert re.match("userdp: (?!Internal error)", result.stderr), result.stderr
    assert result.stderr.count("\n") == 1
    assert any(part in result.stderr for part in message.split("|")), result.stderr
    assert sorted(folder.iterdir()) == before
    assert Ledger.open("l.db").spent_epsilon() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "none.json", "good.csv", "-o", "p.csv"], "a model file at none.json"),
        (["predict", "good.csv", "good.csv", "-o", "p.csv"], "good.csv, it is not JSON"),
        (["predict", "folder.csv", "good.csv", "-o", "p.csv"], "a model file at folder.csv"),
        (["predict", "MODEL", "none.csv", "-o", "p.csv"], "There is no "),
        (["predict", "MODEL", "norows.csv", "-o", "p.csv"], "at least one row"),
        (["predict", "MODEL", "words.csv", "-o", "p.csv"], "finite numbers in column 'x_a'"),
        (["predict", "MODEL", "good.csv", "-o", "good.csv"], "would replace good.csv"),
        (["predict", "MODEL", "good.csv", "-o", "p.txt"], " is unknown: rename it"),
        (["predict", "MODEL", "good.csv", "-o", "none/p.csv"], "There is no folder none"),
        (["predict", "MODEL", "good.csv", "-o", "p.csv", "--keep", "id"], "No column matches 'id'"),
        (["predict", "SVM", "good.csv", "-o", "p.csv", "--proba"], "--proba with a logistic model"),
        (["predict", "MODEL", "latin.csv", "-o", "p.csv"], "in UTF-8"),
        (["evaluate", "MODEL", "good.csv", "--target", "none"], "No column is named 'none'"),
        (["evaluate", "MODEL", "norows.parquet", "--target", "text"], "at least one row"),
        (["report", "none.json", "r.html"], "a model file at none.json"),
        (["report", "MODEL", "none/r.html"], "There is no folder none"),
    ],
)
def test_other_wrong_commands(folder, files, stub_report, arguments, message):
    before = sorted(folder.iterdir())
    names = {"MODEL": files / "text.json", "SVM": files / "svm.json"}
    result = run(*(names.get(argument, argument) for argument in arguments))
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert re.match("userdp: (?!Internal error)", result.stderr), result.stderr
    assert message in result.stderr
    assert sorted(folder.iterdir()) == before


def test_kept_columns_must_not_hide_predictions(tmp_path, files):
    write_table(pa.table(people(60) | {"prediction": np.arange(240)}), tmp_path / "t.csv")
    arguments = ("-o", tmp_path / "p.csv", "--keep", "prediction")
    result = run("predict", files / "text.json", tmp_path / "t.csv", *arguments)
    assert result.exit_code == 1
    assert "but --keep holds one" in result.stderr


def test_fits_need_an_output_or_a_dry_run(folder):
    result = run("fit", "not-there.csv", *COLUMNS, *BUDGET, *FLAG, "--delta", "7")
    assert result.exit_code == 1
    assert "Expected --output" in result.stderr, "before anything else is looked at"
    assert "or --dry-run" in result.stderr
    assert "needed but with --dry-run" in re.sub(r"[│\s]+", " ", run("fit", "--help").stdout)


@pytest.mark.parametrize(
    "arguments", [["fit"], ["nonsense"], ["plan", "--users", "x"], ["fit", "x.csv", "--loss", "magic"], ["--nonsense"]]
)
def test_wrong_usage(arguments):
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")


def raising(error):
    def command():
        raise error

    return guarded(command)


def test_foreign_messages_are_not_passed_on(capsys, monkeypatch):
    monkeypatch.delenv("USERDP_DEBUG", raising=False)
    for error in (ValueError(f"could not convert {SECRET}"), KeyError(SECRET), pa.ArrowInvalid(f"Expected {SECRET}")):
        with pytest.raises(errors.typer.Exit) as caught:
            raising(error)()
        assert caught.value.exit_code == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("userdp: Internal error, ") and SECRET not in line for line in lines)
    monkeypatch.setenv("USERDP_DEBUG", "1")
    with pytest.raises(KeyError):
        raising(KeyError("x"))()


def test_lack_of_memory_is_no_bug():
    assert line_of(MemoryError(SECRET)) == (
        "Expected more memory for a table of this size: close other programs, or take fewer columns."
    )


def test_full_disks_are_no_bug():
    error = OSError(28, "No space left on device", "m.json")
    assert line_of(error) == "Expected to read or write 'm.json': No space left on device."


def test_what_builtins_say_in_our_files_is_not_passed_on():
    with pytest.raises(ValueError, match=SECRET) as caught:
        AffectedUsers.from_list([SECRET] * 3)
    assert line_of(caught.value).startswith("Internal error, ValueError")


def test_parameters_that_are_options_of_another_name_are_told():
    told = in_options("Expected sample_weight to be numbers: pass them by public_X.")
    assert told.endswith("public_X. (Here public_X is --public-data, sample_weight is --weight.)")
    assert in_options("raise row_norm if epsilon=1.") == "raise row_norm if epsilon=1."


def test_whatever_ends_a_run_early_tells_what_was_spent(tmp_path):
    budget = Budget(1.0, 1e-6)

    class Charged:
        budget, n = Budget(2.0, 1e-6), 0

        def __init__(self, path=tmp_path / "l"):
            self.path = path

        def charges(self):
            return (None,) * self.n

        def spent_epsilon(self):
            return 1.0

    def stop(error, charge, *path):
        ledger = Charged(*path)
        with spending(ledger, budget, lambda: "No model."):
            ledger.n = charge
            raise error

    with pytest.raises(KeyboardInterrupt, match=r"^Stopped\. Nothing was spent\.$"):
        stop(KeyboardInterrupt(), 0)
    with pytest.raises(
        KeyboardInterrupt, match=r"epsilon 1 at delta 1e-06 is spent, the ledger has 1 of 2.* No model\."
    ):
        stop(KeyboardInterrupt(), 1)
    with pytest.raises(
        KeyboardInterrupt, match=r"epsilon 1 at delta 1e-06 counts as spent on these users\. No model\."
    ):
        stop(KeyboardInterrupt(), 1, None)
    with pytest.raises(InputError) as caught:
        stop(InputError("Expected x."), 1)
    assert line_of(caught.value).startswith("Expected x. The plan was charged before data was read")
    with pytest.raises(InputError) as caught:
        stop(InputError("Expected x."), 0)
    assert line_of(caught.value) == "Expected x."
