"""What a lint says: its sentence, its fix, and that every rule of the linter has a row of the table."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from diagnostics.analysis import environment
from diagnostics.analysis.environment.situation import Change, assign, lint_of
from diagnostics.causes import lint_texts
from diagnostics.causes.lint_texts import lint_text
from diagnostics.causes.registry import built_in
from diagnostics.contract.files import read_table
from dtk.nccl import lint as nccl_lint


def rules_in_source() -> set[str]:
    """Every text in the linter's modules that could be the name of a rule, and is a row."""
    paths = [*Path(environment.__file__).parent.glob("*.py"), Path(nccl_lint.__file__)]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    return {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value}


def called_rules() -> set[str]:
    """The third argument of each `lint_of`, where it is a literal."""
    rules = set()
    for path in [*Path(environment.__file__).parent.glob("*.py"), Path(nccl_lint.__file__)]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lint_of":
                rules |= {leaf.value for leaf in ast.walk(node.args[2]) if isinstance(leaf, ast.Constant)} - {"\r"}
    return rules


def test_every_rule_has_a_row_and_every_row_a_rule() -> None:
    assert called_rules() <= lint_texts._ROWS.keys()
    assert lint_texts._ROWS.keys() <= rules_in_source()


def test_each_rule_supports_one_cause_which_is_decided_by_the_linter() -> None:
    tables = [read_table(path) for path in Path(lint_texts.__file__).parent.glob("*/[!_]*.yaml")]
    rules = Counter(rule for table in tables for rule in table.get("lints", ()))
    assert rules.keys() == lint_texts._ROWS.keys() and set(rules.values()) == {1}
    causes = {row["cause"] for row in lint_texts._ROWS.values()}
    assert {cause.id for cause in built_in()} >= causes and len(causes) == 10


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("a",), "a is unknown and ignored"),
        (("a", "b "), "a, 'b ' are unknown and ignored"),
        (tuple("abcdefgh"), "a, b, c, d, e, f and 2 more are unknown and ignored"),
    ],
)
def test_a_list_of_names_is_spelled_out(names: tuple[str, ...], text: str) -> None:
    assert lint_text(lint_of("warning", "NCCL_DEBUG_SUBSYS", "list_word", words=names)).message == text


def test_versions_and_values_of_ranks_are_spelled_out() -> None:
    assert lint_text(lint_of("note", "NCCL_X", "not_public", newest=(2, 30, 1))).message.startswith("no public NCCL up")
    disagree = lint_of("error", "NCCL_ALGO", "ranks_disagree", values=(("Ring", (0, 1, 3)), ("Tree", (2,))))
    assert lint_text(disagree).message == "ranks disagree: 'Ring' on ranks 0, 1 and 3; 'Tree' on rank 2"


def test_the_fix_is_the_row_s_own_else_what_the_change_does() -> None:
    assert lint_text(lint_of("warning", "NCCL_PROTO", "ll128", Change("NCCL_PROTO"))).fix == "unset NCCL_PROTO"
    assert lint_text(lint_of("note", "NCCL_DEBUG", "logs_start", assign("NCCL_DEBUG", "WARN"))).fix == "NCCL_DEBUG=WARN"
    slip = lint_text(lint_of("error", "NCCL_NETT", "slip", Change("NCCL_NETT", "NCCL_NET"), meant="NCCL_NET"))
    assert slip.fix == "rename it to NCCL_NET" and slip.fix_in_message


def test_a_value_with_braces_is_text_and_no_placeholder() -> None:
    assert lint_text(lint_of("error", "NCCL_COMM_ID", "no_port", text="{choice}")).message == "'{choice}' has no port"


def test_a_rule_without_a_row_is_an_error() -> None:
    with pytest.raises(KeyError):
        lint_text(lint_of("note", "NCCL_NET", "no such rule"))
