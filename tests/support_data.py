"""Users in a few rows, and a value that no message may show."""

from __future__ import annotations

import numpy as np

from userdp.data.users import UserData


def grouped(ids, **options) -> UserData:
    n = len(ids)
    return UserData.from_arrays(np.arange(2.0 * n).reshape(n, 2), np.arange(float(n)), ids, **options)
