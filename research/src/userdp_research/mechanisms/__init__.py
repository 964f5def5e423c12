"""Mechanisms of earlier work: audited and tested like userdp's own."""
