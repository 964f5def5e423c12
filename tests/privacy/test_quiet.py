import warnings

import pytest

from userdp.privacy.warnings_off import Quiet


def test_warnings_stay_off_until_the_last_one_has_left():
    quiet = Quiet()
    with quiet:
        with quiet:
            warnings.warn("first", UserWarning, stacklevel=1)
        warnings.warn("second", UserWarning, stacklevel=1)  # an error, were it not ignored
    with pytest.warns(UserWarning, match="third"):
        warnings.warn("third", UserWarning, stacklevel=1)
