"""Any text of the user's stays one argument or one value, as the shell and the YAML parser themselves read it."""

import re
import shlex
import subprocess
from collections.abc import Callable

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from dtk.console.script_text import (
    as_yaml,
    check_form,
    check_line,
    kubernetes_argument,
    sbatch_option,
    sbatch_word,
    shell,
)
from dtk.errors import DtkError

FORM = re.compile(r"\d+G?")
HOSTILE = [
    "$(touch owned)",
    "`id`",
    "a'b",
    'a"b',
    "a\nb",
    "; rm -rf ~",
    "$HOME",
    "\\",
    "#x",
    "%j",
    "*",
    "~",
    "-n",
    "",
    "!!",
    "{a,b}",
]
texts = st.one_of(
    st.sampled_from(HOSTILE),
    st.lists(st.sampled_from(HOSTILE), max_size=4).map("".join),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(texts, min_size=1, max_size=20))
def test_bash_reads_the_arguments_that_were_quoted(arguments: list[str]) -> None:
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {shell(*arguments)}"], capture_output=True, check=True)
    assert done.stdout == "".join(f"{argument}\0" for argument in arguments).encode()


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text("abc_", min_size=1, max_size=5), st.one_of(texts, st.lists(texts)), max_size=5))
def test_a_yaml_parser_reads_the_values_that_were_written(values: dict[str, object]) -> None:
    assert yaml.safe_load(as_yaml(values)) == values


@settings(max_examples=100, deadline=None)
@given(texts)
def test_an_option_of_sbatch_is_one_word_of_one_line_or_refused(text: str) -> None:
    try:
        line = sbatch_option("job-name", text)
    except DtkError:
        assert any(ord(character) < 32 or ord(character) in (0x7F, 0x85, 0x2028, 0x2029) for character in text)
        return
    assert len(line.splitlines()) == 1 and line.startswith("#SBATCH --job-name=")
    quoted = line.removeprefix("#SBATCH ")
    lexer = shlex.shlex(quoted, posix=True, punctuation_chars="")
    lexer.whitespace_split, lexer.commenters, lexer.quotes = True, "", '"'
    assert list(lexer) == [f"--job-name={text}"]


@given(texts)
def test_kubernetes_expands_no_name_in_an_argument(text: str) -> None:
    assert kubernetes_argument(text).replace("$$", "") == text.replace("$", "")


@pytest.mark.parametrize(
    ("check", "good", "bad", "message"),
    [
        (lambda text: check_line(text, "k"), "a b", "a\nb", "k has a line break or a control character in it"),
        (lambda text: check_line(text, "k"), "ä€", "a\x85b", "k has a line break or a control character in it"),
        (
            lambda text: check_form(text, FORM, "k", "a size", "7 or 7G"),
            "90G",
            "9GB",
            "k=9GB is not a size - use 7 or 7G",
        ),
        (lambda text: check_form(text, FORM, "k", "a size", "7"), "90", "", "k= is not a size - use 7"),
        (lambda text: check_form(text, FORM, "k", "a size", "7"), "1", "1\n", "k has a line break"),
    ],
)
def test_values_that_a_script_could_not_hold_are_one_line(
    check: Callable[[str], str], good: str, bad: str, message: str
) -> None:
    assert check(good) == good
    with pytest.raises(DtkError) as caught:
        check(bad)
    assert str(caught.value).startswith(message)


def test_options_of_the_users_are_whole_lines() -> None:
    assert sbatch_word("--constraint=h100") == "#SBATCH --constraint=h100"
    assert sbatch_word("--exclusive") == "#SBATCH --exclusive"
    assert sbatch_word("--comment=a b") == '#SBATCH --comment="a b"'
    for wrong in ("-C h100", "constraint=h100", "--Constraint=h100", "--", "--a\n#SBATCH --b"):
        with pytest.raises(DtkError):
            sbatch_word(wrong)


def test_words_that_yaml_reads_as_something_else_are_quoted() -> None:
    text = as_yaml({"a": "yes", "b": "no", "c": "plain", "d": "1e3", "e": "line\nline\n", "f": ["x"], "g": ["x"]})
    assert 'a: "yes"' in text and 'b: "no"' in text and "c: plain" in text and 'd: "1e3"' in text
    assert "e: |\n  line\n  line\n" in text and "&" not in text and "*" not in text
    assert as_yaml({"a": "x"}, {"b": "y"}).count("---") == 2


@pytest.mark.parametrize("value", ["yes", "1e3", "0x1f", "1:30", "~", "null", "- a", "a: b", "#x", " x", "%d", "\ttab"])
def test_yaml_keeps_text_as_text_for_old_and_new_readers(value: str) -> None:
    written = as_yaml({"key": value})
    assert yaml.safe_load(written) == {"key": value}
    assert '"' in written or written == "key: yes\n" or re.fullmatch(r"key: [a-z]+\n", written) is None
