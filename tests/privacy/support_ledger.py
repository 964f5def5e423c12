"""A budget and a plan for tests of ledgers."""

import pytest

from userdp.paper.outlier_removal import OutlierRemoval
from userdp.privacy import ledger
from userdp.privacy.accounting import Budget, BudgetExceeded
from userdp.privacy.plan import Plan, Step

BUDGET = Budget(1.0, 1e-5)


def plan(z=40.0, test_epsilon=0.1, size=1000):
    return Plan(size, (Step("only", 0, size, OutlierRemoval(size, z, test_epsilon, 1e-7, 0.01)),))


def charge_until_refused(book):
    for accepted in range(100):
        try:
            book.charge(plan())
        except BudgetExceeded:
            return accepted
    pytest.fail("the ledger never refuses")


def spent(book):
    """What was spent in all, as charged between runs, by each way of being in the plans' sets of users."""
    return ledger._totals(charge.dominating for charge in book.charges())
