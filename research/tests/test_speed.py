"""A guard of speed, by counts and ratios in one run: passes of the default, and its CPU time over scikit-learn's."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speed.py"


@pytest.mark.slow
def test_the_default_takes_few_passes_and_about_the_time_of_a_fit_without_privacy():
    done = subprocess.run([sys.executable, SCRIPT, "--quick"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
