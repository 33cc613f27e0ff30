"""Pictures and tables made from what trainings left; nothing here trains."""

from stochbatch.report.article import write_article
from stochbatch.report.curve import learning_curve
from stochbatch.report.page import ReportError, write_report

__all__ = ["ReportError", "learning_curve", "write_article", "write_report"]
