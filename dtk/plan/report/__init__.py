"""One plan as terminal text, JSON or an HTML page."""
