"""The gates of the built-in fault trees, from `branches.yaml`; a cause names its own (`Cause.branch`)."""

from diagnostics.contract.causes import Branch
from diagnostics.contract.files import table_beside

BRANCHES = tuple(Branch(id, title, above=id.rpartition(".")[0]) for id, title in table_beside(__file__).items())
