"""The report: its model and the forms it takes (terminal, JSON, Markdown, HTML)."""
