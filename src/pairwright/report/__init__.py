"""The report of a run: one self-contained page that shows every stage, and its plots as files."""

from pairwright.report.page import Report, make_report, write_report

__all__ = ["Report", "make_report", "write_report"]
