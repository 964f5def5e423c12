"""The picture of an audit: each lower bound beside its claim."""

from __future__ import annotations

from os import PathLike

from matplotlib.figure import Figure

from userdp.auditing.run import AuditReport


def plot_audit(report: AuditReport, path: str | PathLike[str]) -> None:
    """Draw a line for each finding: dots are bounds, the bar is the claim; the suffix of `path` says the format."""
    findings = report.findings[::-1]
    figure = Figure(figsize=(7.5, 1.2 + 0.22 * len(findings)), layout="constrained")
    axes = figure.subplots()
    places = range(len(findings))
    axes.barh(places, [finding.claim for finding in findings], color="#d9e6ec", label="claim")
    axes.plot([finding.bound for finding in findings], places, "o", color="#0b6e99", markersize=5, label="bound")
    shaped = [finding.best if finding.shaped is None else finding.shaped for finding in findings]
    axes.plot(
        shaped, places, "|", color="#c2571a", markersize=9, markeredgewidth=2, label="bound with the claimed shape"
    )
    axes.set_yticks(places, [f"{f.what}, {f.mode}: {f.attack}" for f in findings], fontsize=7)
    axes.set_xlabel("epsilon")
    axes.set_xlim(left=0)
    figure.legend(loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    figure.savefig(path, metadata={"Date": None} if str(path).lower().endswith(".svg") else None, dpi=150)
