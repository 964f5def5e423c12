"""The audited core: everything that touches data on the way out lives here.

A reviewer reads, in this order:

1. `accounting`: what releases cost, in replace units; what fits into (epsilon, delta);
2. `plan`: who is asked what, in which order, certified before data is read;
3. `mechanism`, then `clip` and `vocabulary`, each with its sensitivity and its cost; `noise`: what is drawn;
4. `curator`: the only gate; certify, charge, and only then look;
5. `ledger`: what was spent, written down first; `domination`: why that holds however runs are chosen; `journal`: how
   a run that was killed resumes;
6. `statement`: what may be said of a run, and what its noise allows an attacker.

The proofs are in docs/proofs.md, in sections that the docstrings name; docs/reading-map.md counts the lines.
"""

import re
from importlib.metadata import version

import userdp

_LEAST_OPENDP = (0, 15)


def check_opendp(installed: str) -> None:
    """Refuse an OpenDP whose noise is known to be wrong.

    0.14.0 and 0.14.1 draw biased integer noise (OpenDP's issue 2638): at scale 3, neighbouring outputs differ in their
    log-probabilities by 0.504 where 0.333 is allowed.
    """
    found = re.match(r"(\d+)\.(\d+)", installed)
    if found is None or tuple(map(int, found.groups())) < _LEAST_OPENDP:
        raise ImportError(
            f"opendp {installed} is too old: userdp needs opendp >= 0.15, because 0.14.0 and 0.14.1 draw "
            "biased noise, which is not private. Run: pip install 'opendp>=0.15'"
        )


check_opendp(version("opendp"))


__getattr__ = userdp._names_of(__name__)
