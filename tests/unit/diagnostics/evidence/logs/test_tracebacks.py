"""Tracebacks put together line by line, and which exception of a chain is kept."""

import io

import pytest
from hypothesis import given, settings, strategies as st
from rich import traceback as rich_traceback
from rich.console import Console

from diagnostics.evidence.endings import kind_of_exception
from diagnostics.evidence.logs.tracebacks import MAX_FRAMES, MAX_MESSAGE, Assembler, Box, parse, parse_stack
from diagnostics.evidence.model import Frame

HEAD = "Traceback (most recent call last):\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def trace(error, file="train.py", line=7):
    return f'{HEAD}  File "{file}", line {line}, in step\n    loss.backward()\n    ^^^^^^^^\n{error}\n'


def test_type_message_and_frames_innermost_first():
    frames = '  File "main.py", line 2, in <module>\n    run()\n  File "train.py", line 7, in step\n'
    text = f"{HEAD}{frames}my.pkg.BadBatch: no 3\n"
    raised = parse(text)
    assert (raised.type, raised.message) == ("BadBatch", "no 3")
    assert [(f.file, f.line, f.function) for f in raised.frames] == [
        ("train.py", 7, "step"),
        ("main.py", 2, "<module>"),
    ]


def test_an_exception_without_a_message():
    assert (parse(trace("KeyboardInterrupt")).type, parse(trace("KeyboardInterrupt")).message) == (
        "KeyboardInterrupt",
        "",
    )


@pytest.mark.parametrize("text", ["", "loss 3", HEAD, 'File "a", line 1, in f\n'])
def test_what_is_no_traceback(text):
    assert parse(text) is None


def test_the_first_of_a_chain_is_kept_where_the_others_wrap_it():
    raised = parse(trace("KeyError: 'x'", "data.py", 3) + CAUSE + trace("ValueError: bad batch"))
    assert (raised.type, raised.frames[0].file) == ("KeyError", "data.py")
    assert raised.message == "'x' (then ValueError: bad batch)"


def test_the_callers_of_an_exception_that_a_library_handled_are_those_of_what_it_raised_then():
    inner = f'{HEAD}  File "lib.py", line 5, in call\n  File "lib.py", line 9, in send\nOSError: no route\n'
    outer = f'{HEAD}  File "train.py", line 2, in step\n  File "lib.py", line 7, in call\nValueError: not sent\n'
    assert [frame.line for frame in parse(inner + CAUSE + outer).frames] == [9, 5, 2]
    assert [frame.line for frame in parse(inner + CAUSE + trace("ValueError: elsewhere")).frames] == [9, 5]


def test_a_signal_that_came_during_a_wait_is_no_news_beside_the_end_of_that_wait():
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5"
    assert parse(trace(lost) + HANDLING + trace("KeyboardInterrupt")).type == "RuntimeError"


def test_the_last_is_kept_where_it_was_raised_while_others_were_handled():
    raised = parse(trace("KeyError: 'x'") + HANDLING + trace("ValueError: bad batch"))
    assert (raised.type, raised.message) == ("ValueError", "bad batch")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "RuntimeError: cleaning up"),
        (
            "ValueError: bad batch",
            "RuntimeError: [/gloo/transport/tcp/pair.cc:5] Connection closed by peer [1.1.1.1]:2",
        ),
    ],
)
def test_what_clearing_up_raised_is_no_news(first, then):
    """Memory that ran out goes before all, an error of one's own before the loss of a peer."""
    raised = parse(trace(first) + HANDLING + trace(then))
    assert raised.type == first.partition(":")[0].rpartition(".")[2]
    assert "(then RuntimeError" in raised.message


def test_the_exception_of_a_data_loaders_worker_is_the_cause():
    worker = 'Original Traceback (most recent call last):\n  File "data.py", line 9, in __getitem__\nIndexError: 12\n'
    raised = parse(trace("IndexError: Caught IndexError in DataLoader worker process 0.") + worker)
    assert (raised.type, raised.message) == ("IndexError", "12")
    assert [frame.file for frame in raised.frames] == ["data.py", "train.py"], "the reader's frames lie around it"


def test_lines_of_a_message_are_joined_until_the_log_goes_on():
    text = (
        trace("RuntimeError: Error(s) in loading state_dict:")
        + "\tsize mismatch for w: [2] and [3].\nstep 8 loss 2.0\n"
    )
    assert parse(text).message == "Error(s) in loading state_dict:\nsize mismatch for w: [2] and [3]."
    assert parse(trace("ValueError: a") + "epoch 3\n").message == "a"
    numbered = "[ERROR] 2025-04-08-18:07:20 (PID:1, Device:1, RankID:1) ERR01100 OPS call\nEI0006: socket times out\n"
    assert parse(trace("RuntimeError: HcclAllreduce") + numbered).message.endswith("OPS call\nEI0006: socket times out")
    assert parse(trace("RuntimeError: a") + "[ERROR] the trainer gave up\n").message == "a"


def test_a_group_of_exceptions_is_drawn_with_bars():
    bars = "".join(f"  | {line}\n" for line in trace("ValueError: bad").splitlines())
    raised = parse("  + Exception Group " + HEAD + bars)
    assert (raised.type, raised.message) == ("ValueError", "bad")


def test_two_tracebacks_of_one_stream_are_two_exceptions():
    assembler = Assembler()
    for line in (trace("ValueError: a") + "\n" + trace("KeyError: 'b'")).splitlines():
        assembler.feed(line)
    assert [raised.type for raised in assembler.take(end=True)] == ["ValueError", "KeyError"]
    assert assembler.take(end=True) == []
    assert not assembler.active


def test_it_waits_for_a_chain_and_not_longer():
    assembler = Assembler()
    for line in trace("ValueError: a").splitlines():
        assembler.feed(line)
    assert assembler.active
    assert assembler.take() == [], "another may be chained to it"
    for line in ["", "", "", "step 8"]:
        assembler.feed(line)
    assert [raised.type for raised in assembler.take()] == ["ValueError"]


def test_a_traceback_without_end_is_given_up():
    frames = "".join(f'  File "a.py", line {n}, in f\n' for n in range(MAX_FRAMES + 5))
    assert len(parse(HEAD + frames + "RecursionError: maximum\n").frames) == MAX_FRAMES
    assembler = Assembler()
    for line in [HEAD.strip(), *["    noise"] * 3000]:
        assembler.feed(line)
    assert not assembler.active
    assert len(parse(trace("ValueError: " + "x" * 9000)).message) == MAX_MESSAGE


@given(
    st.lists(
        st.sampled_from([*trace("ValueError: a").splitlines(), *CAUSE.splitlines(), "x", "  y", "| z"]), max_size=40
    )
)
@settings(max_examples=100)
def test_whatever_lines_come_exceptions_have_a_type(lines):
    assembler = Assembler()
    for line in lines:
        assembler.feed(line)
    for raised in assembler.take(end=True):
        assert raised.type
        assert len(raised.message) <= MAX_MESSAGE


def test_a_stack_that_was_cut_off():
    cut = '  File "a.py", line 1, in f\n    g()\n  File "b.py", line 2, in g\n    h('
    assert [frame.file for frame in parse_stack(cut)] == ["b.py", "a.py"]
    assert parse_stack("nothing") == ()


FRAMES = '  File "train.py", line 8, in main\n    step()\n  File "model.py", line 3, in step\n    x[9]\n'


@pytest.mark.parametrize(
    ("text", "message", "frames"),
    [
        (FRAMES + "IndexError: list index out of range\n", "list index out of range", 2),  # Its head was cut off.
        (FRAMES.partition("\n")[2] + "IndexError: list index\n", "list index", 1),
        ("IndexError: list index\n", "list index", 0),
        ("my.package.IndexError: list index\nstep 3\n", "list index", 0),
        (HEAD + "IndexError: without frames\n", "without frames", 0),
        ("IndexError:\nlist index\n: more of it\n", "list index", 0),  # As rich breaks a line that is too long.
    ],
)
def test_what_is_left_of_a_traceback_that_was_cut(text, message, frames):
    raised = parse(text)
    assert raised is not None
    assert (raised.type, raised.message, len(raised.frames)) == ("IndexError", message, frames)


@pytest.mark.parametrize(
    "text",
    [
        "ERROR: the server said no\n",
        "  ValueError: as an example in a docstring\n",
        "UserWarning: something: else\n",
        "ncclSystemError: System call failed\n",
        "loss Error: 3\n",
        "IndexError\n",
        FRAMES + "step 3 loss 2.0\n",  # As logging prints the stack of a call.
        'Thread 0x7f (most recent call first):\n  File "a.py", line 3 in f\n  File "b.py", line 4 in g\n\n',
    ],
)
def test_lines_that_are_no_exception(text):
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RuntimeError: \n        the set-up of a library failed\n", "the set-up of a library failed"),
        ("ValueError:  \n\nnext", ""),
        ("Error: \n        nothing\n", None),
        ("a RuntimeError: \n        nothing\n", None),
    ],
)
def test_an_exception_whose_first_line_is_empty(text: str, message: str | None) -> None:
    raised = parse(text)
    assert (raised and raised.message) == message


def test_the_plainest_class_is_one_as_well():
    raised = parse("Exception: the scale is too small\n")
    assert raised is not None and (raised.type, raised.message) == ("Exception", "the scale is too small")


@pytest.mark.parametrize("width", [60, 80, 100, 300])
@pytest.mark.parametrize("show_locals", [False, True])
def test_rich_draws_a_box_around_a_traceback(tmp_path, width, show_locals):
    file = tmp_path / "/".join(["a_folder_with_a_long_name", *["deep"] * 20]) / "train.py"
    file.parent.mkdir(parents=True)
    file.write_text("def inner():\n    value = {'key': 'x' * 200}\n    raise ValueError('no 3')\n\n\ninner()\n")
    out = io.StringIO()
    try:
        exec(compile(file.read_text(), file, "exec"), {})
    except ValueError as error:
        three = (type(error), error, error.__traceback__.tb_next)
        shown = rich_traceback.Traceback.from_exception(*three, show_locals=show_locals, width=width)
        Console(file=out, width=width).print(shown)
    box, raised = Box(), Assembler()
    for line in out.getvalue().splitlines():
        for plain in box.lines(line):
            raised.feed(plain)
    (result,) = raised.take(end=True)
    assert (result.type, result.message) == ("ValueError", "no 3")
    assert result.frames == (Frame(str(file), 3, "inner"), Frame(str(file), 6, "<module>"))


@pytest.mark.parametrize("fold", ["/a/train |.py:3 in inner", "/a/train.py:3 |in inner", "/a/train.py:3 in |inner"])
def test_a_box_whose_line_is_full_before_a_suffix_or_a_space(fold):
    first, then = fold.split("|")
    box = [
        "╭─ Traceback (most recent call last) ─╮",
        f"│ {first.rstrip()} │",
        f"│ {then} │",
        "╰──╯",
        "ValueError: no 3",
    ]
    reader, raised = Box(), Assembler()
    for line in box:
        for plain in reader.lines(line):
            raised.feed(plain)
    (result,) = raised.take(end=True)
    assert result.frames == (Frame("/a/train.py", 3, "inner"),)


_BOX_LINES = ["╭─ Traceback (most recent call last) ─╮", "│ a.py:1 in f │", "│ /x │", "│ │", "╰─╯", "", "x"]


@given(st.lists(st.sampled_from(_BOX_LINES)))
@settings(max_examples=60, deadline=None)
def test_a_damaged_box_loses_nothing_outside_it(lines):
    box = Box()
    shown = [plain for line in lines for plain in box.lines(line)]
    assert shown.count("x") == lines.count("x")


OWN_RAISE = """Traceback (most recent call last):
  File "/src/fit.py", line 9, in <module>
    read()
  File "/src/read.py", line 3, in read
    {code}
RuntimeError: Socket Timeout
"""


def test_a_raise_statement_of_the_users_is_its_own_error_and_a_call_is_not():
    own = parse(OWN_RAISE.format(code="raise RuntimeError('Socket Timeout')"))
    of_torch = parse(OWN_RAISE.format(code="store.get('raise ')"))
    kinds = [kind_of_exception(item.type, item.message, item.frames) for item in (own, of_torch)]
    assert kinds == ["raised", "timed_out"]


def test_a_wrapper_that_repeats_what_it_handled_is_no_news():
    first = OWN_RAISE.format(code="dist.barrier()")
    wrapper = OWN_RAISE.format(code="raise RuntimeError(f'step 3: {e}')").replace("Socket", "step 3: Socket")
    both = parse(f"{first}\nDuring handling of the above exception, another exception occurred:\n\n{wrapper}")
    assert kind_of_exception(both.type, both.message, both.frames) == "timed_out"


@pytest.mark.parametrize(
    ("error", "after", "message"),
    [
        ("AssertionError", "srun: error: n7: task 1: Exited with exit code 1", ""),
        ("my.api.ClosedError", "step 7 loss 2.0", ""),
        ("my.api.ClosedError:", "the rendezvous was closed", "the rendezvous was closed"),
        ("ValueError: shapes differ:", "  [3] and [4]", "shapes differ:\n[3] and [4]"),
    ],
)
def test_a_line_behind_an_exception_is_its_message_only_behind_a_colon(error, after, message):
    assert parse(trace(error) + after + "\n").message == message
