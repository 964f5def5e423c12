"""The audited core: everything that touches data on the way out lives here.

Read in this order: `accounting` (what a release costs), `noise` (what is drawn), `neighbours` and `concentration`
(the filtered mean and its sensitivity), `mechanisms` (tests, releases and searches), `plan` (who is asked what),
`domination` and `ledger` (what was spent, however it was chosen), `curator` (the gate). The proofs are in
docs/proofs.md.
"""

import userdp

__getattr__ = userdp._names_of(__name__)
