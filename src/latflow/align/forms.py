"""Forms that alignments are written in, see `ExportOptions`; imported in no time."""

from typing import Literal, get_args

ExportFormat = Literal[
    "textgrid", "short_textgrid", "mfa_json", "csv", "ctm", "json", "analysis"
]
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
