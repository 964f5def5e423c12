"""Empirical privacy audit: attacks on mechanisms and on whole trainings, and the epsilon that they prove at least."""

from userdp.auditing.bounds import Finding
from userdp.auditing.run import AuditReport, audit, auditable

__all__ = ["AuditReport", "Finding", "audit", "auditable"]
