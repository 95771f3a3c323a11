"""Errors that the user can fix: a path that cannot be diagnosed, an option that cannot be satisfied."""


class DiagnosticsError(Exception):
    """An error printed as one line on stderr, with exit code 2."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}; {fix}" if fix else what)
        self.what = what
        self.fix = fix
