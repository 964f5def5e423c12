"""The HTML report of a released model: what was guaranteed, what was spent, what came out.

One file that needs neither network nor scripts. It is made from the model's record, all of which may be released.
"""

from userdp.report.facts import report_facts
from userdp.report.page import report_html, write_report

__all__ = ["report_facts", "report_html", "write_report"]
