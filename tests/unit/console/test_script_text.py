"""Any text of the user's stays one argument or one value, as the shell and the YAML parser themselves read it."""

import shlex
import subprocess

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dtk.console.script_text import as_yaml, kubernetes_argument, sbatch_option, shell
from dtk.errors import DtkError

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


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text("abc_", min_size=1, max_size=5), st.one_of(texts, st.lists(texts)), max_size=5))
def test_a_yaml_parser_reads_the_values_that_were_written(values: dict[str, object]) -> None:
    assert yaml.safe_load(as_yaml(values)) == values


@settings(max_examples=200, deadline=None)
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
