"""The audited core: everything that touches data on the way out lives here.

A reviewer reads, in this order:

1. `accounting`: what releases cost, in replace units; what fits into (epsilon, delta);
2. `plan`: who is asked what, in which order, certified before data is read;
3. `mechanisms`: `base`, then those the solver uses, each with its sensitivity and its cost; `noise`: what is drawn;
4. `curator`: the only gate; certify, charge, and only then look;
5. `ledger`: what was spent, written down first; `domination`: why that holds however runs are chosen; `journal`: how
   a run that was killed goes on;
6. `guarantee`: what may be said of a run, and what its noise allows an attacker.

The proofs are in docs/proofs.md, in sections that the docstrings name; docs/reading-map.md counts the lines.
"""

import userdp

__getattr__ = userdp._names_of(__name__)
