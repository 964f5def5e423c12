"""Tables to users: what is declared, whose row is whose, files."""

import userdp

__getattr__ = userdp._names_of(__name__)
