"""`userdp audit`: the table, its files, and the exit code that says a claim was exceeded."""

import json
import re

import pytest
from support_cli import run

from userdp.privacy import noise

QUICK = ("audit", "--mechanism", "Clip", "--fast", "--seeded", "--runs", "600")


def test_a_table_and_its_files(tmp_path):
    result = run(*QUICK, "--json", tmp_path / "a.json")
    assert result.exit_code == 0, result.output
    assert "holds" in result.output
    assert "claim" in result.output
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["holds"] is True
    assert record["secure_noise"] is False
    kinds = ("", ", 3 rounds", ", acute vectors", ", Laplace noise", ", Laplace noise, 3 rounds")
    kinds += (", sampled", ", curvature matrices", ", squares of gradients")
    kinds += (", squares of means", ", counts of a quantile")
    kinds += (", zero-out", ", Laplace noise, zero-out", ", sampled, zero-out")
    assert {finding["what"] for finding in record["findings"]} == {f"Clip{kind}" for kind in kinds}
    assert re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}$", record["date"])


def test_a_bound_above_its_claim_ends_with_exit_code_1(monkeypatch):
    drawn = noise.gaussian_std
    monkeypatch.setattr(noise, "gaussian_std", lambda *asked: drawn(*asked) / 4)
    result = run(*QUICK)
    assert result.exit_code == 1
    assert "EXCEEDED" in result.output
    assert "bug" in result.output
    assert run(*QUICK, "--quiet").output == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Expected one of --solver, --mechanism and --all"),
        (("--all", "--solver", "whitened-clip"), "Expected one of --solver, --mechanism and --all"),
        (("--mechanism", "Clap"), "mechanism must be one of Clip, "),
        (("--solver", "nobody"), "solver must be one of accelerated, "),
        (("--solver", "whitened-clip", "--mode", "paper"), "solver must be one of"),
        (("--mechanism", "Clip", "--mode", "loose"), "calibrated"),
        (("--mechanism", "Clip", "--runs", "3"), "runs must be a whole number >= 100, got 3"),
        (("--mechanism", "Clip", "--confidence", "2"), "confidence must be above 0 and below 1, got 2"),
        (("--mechanism", "Clip", "--epsilon", "-1"), "epsilon=-1"),
        (("--mechanism", "Clip", "--json", "/nowhere/a.json"), "/nowhere"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message):
    result = run("audit", *arguments)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_the_shipped_noise_is_the_default():
    result = run("audit", "--mechanism", "GaussianTest", "--fast", "--runs", "400")
    assert result.exit_code in (0, 1), result.output  # fresh noise: one audit in twenty may err
    assert "seeded" not in result.output
