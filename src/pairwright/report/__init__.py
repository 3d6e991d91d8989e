"""The report of a run: a self-contained HTML page with a section per stage, and its plots as files."""

from pairwright.report.page import Report, make_report, write_report

__all__ = ["Report", "make_report", "write_report"]
