"""docs/audit.md shows what is in docs/audit-results.json."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "audit.py"


def test_the_page_has_the_newest_results():
    script = runpy.run_path(str(SCRIPT))
    assert script["PAGE"].read_text() == script["page"](), "run python docs/audit.py"
