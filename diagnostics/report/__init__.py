"""The report: its model and its output formats (terminal, JSON, Markdown, HTML)."""
