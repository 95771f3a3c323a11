"""Lines of a log: what launchers put in front of them, and which of them are cut out."""

import codecs
import json

import pytest
from hypothesis import given, settings, strategies as st

from diagnostics.evidence.limits import Limits
from diagnostics.evidence.logs import lines as module
from diagnostics.evidence.logs.lines import LineReader, has_utf16_mark, label_of, records, split


def parts(raw, head=""):
    line = split(1, raw.encode(), label_of(head.encode()))
    return line.text, line.stream, line.rank, line.local_rank


@pytest.mark.parametrize(
    ("raw", "text", "rank", "local_rank"),
    [
        ("[rank3]: loss 2", "loss 2", 3, None),
        ("[rank3]:[W1] warning", "[W1] warning", 3, None),
        ("[1,2]<stderr>: Traceback", "Traceback", 2, None),
        ("[2]<stderr>:Killed", "Killed", 2, None),  # Horovod's gloo launcher.
        ("Fri Aug 11 12:31:45 2023[1,3]<stdout>:loss", "loss", 3, None),
        ("[default5]:step 1", "step 1", None, 5),
        ("[trainer0|8]:step 1", "step 1", None, 0),
        ("[2024-02-27T21:35:28.419868Z] fa88a9df [rank=6] || Traceback", "Traceback", 6, None),
        ("[2024-02-27T21:35:32.106313Z] fa88a9df || WARNING: x", "WARNING: x", None, None),
        ("[default5]:[rank13]: step 1", "step 1", 13, 5),
        ("(Train pid=77, ip=10.0.0.1) go", "go", None, None),
        ("(Train rank=4, pid=77) go", "go", 4, None),
        ("2026-01-01T00:00:00.123456Z stderr F [rank1]: x", "x", 1, None),
        ("node7 | progress 3% [rank2]: x", "x", 2, None),
        ("[2026-04-18 15:55:06] CRITICAL [job.util:158, rank=6] Uncaught KeyError: 1", "KeyError: 1", 6, None),
        ("2026-04-18 15:55:06,123 ERROR [job.util:158, rank=6] x", "x", 6, None),
        ("trainer-1  | loss 2", "loss 2", None, None),  # docker compose, and its `logs -t`
        ("trainer-1  | 2026-01-01T00:00:00.123456Z [rank1]: x", "x", 1, None),
        ("layer_1  | 2.31 | 0.5", "layer_1  | 2.31 | 0.5", None, None),
        ("[pod/job-worker-0/pytorch]   File x", "  File x", None, None),
        ("Feb 02 22:52:45 gpu-node-a torchrun[1234]: [rank1]: x", "x", 1, None),  # journalctl
        ("2026-02-02T22:52:45+0000 gpu-node-a torchrun[1234]: x", "x", None, None),
        ("Feb 02 22:52:45 node1 kernel: Out of memory", "Feb 02 22:52:45 node1 kernel: Out of memory", None, None),
        ("Feb 02 22:52:45 KeyError: 1", "KeyError: 1", None, None),  # Stamped by `ts`, say.
        ("[2026-02-02 22:52:45]   exitcode  : -11 (pid: 7)", "  exitcode  : -11 (pid: 7)", None, None),
        ("2026-02-02 22:52:45 ERROR KeyError: 1", "2026-02-02 22:52:45 ERROR KeyError: 1", None, None),
        ("2026-02-02 22:52:45 Errors: 0", "2026-02-02 22:52:45 Errors: 0", None, None),
        ("3: loss", "3: loss", None, None),
        ("plain", "plain", None, None),
    ],
)
def test_prefixes(raw, text, rank, local_rank):
    result = parts(raw)
    assert (result[0], result[2], result[3]) == (text, rank, local_rank)


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-01-01T00:00:00.1234{}Z stderr F ",
        "Fri Aug 11 12:31:4{} 2023[1,3]<stdout>:",
        "[2024-02-27T21:35:28.41986{}Z] fa88a9df [rank=6] || ",
        "[2024-02-27T21:35:28.41986{}Z] fa88a9df || ",
        "[2026-04-18 15:55:0{}] CRITICAL [job.util:158, rank=6] ",
        "Feb 02 22:52:4{} gpu-node-a torchrun[1234]: ",
    ],
)
def test_times_do_not_part_the_lines_of_one_writer(prefix):
    (stream,) = {parts(prefix.format(n) + "line")[1] for n in range(3)}
    assert ("stderr" in stream) == ("stderr" in prefix)


def test_srun_labels_lines_where_all_of_them_have_one():
    head = "0: a\n1: b\n 2: c\n3: cut o"
    assert parts("3: [rank7]: x", head) == ("x", "3: [rank7]:", 7, None)
    assert parts(" 3: x", head)[2] == 3
    assert label_of(b"0: a\n1: b\nc\n2: d\n") is None
    assert label_of(b"0: a\n1: b\n2: c") is None, "too few to tell"
    script = b"Starting job on n1\n" + b"0: a\n1: b\n" * 3
    assert label_of(script) is not None, "a batch script prints lines of its own"
    assert label_of(b"1: a\n2: b\n3: c\nd\n4: e\n5: f\n") is None, "a list"


def test_pdsh_labels_lines_with_their_host():
    head = "worker-1: a\n10.0.0.6: b\nnode7:   c\nworker-1: cut o"
    assert parts("worker-1:   File x", head) == ("  File x", "worker-1:", None, None)
    assert parts("worker-1: [rank7]: x", head) == ("x", "worker-1: [rank7]:", 7, None)
    assert label_of(b"ERROR: a\nERROR: b\nINFO: c\nERROR: d\n") is None, "levels of a logger"
    assert label_of(b"node7: a\nno host\nnode7: c\nnode7: d\n") is None
    assert label_of(b"node7:1:2 [0] NCCL INFO a\n" * 4) is None, "NCCL's own lines"


def test_a_block_of_code_is_indented():
    head = "    step 1\n    Traceback\n\n      File x\n    cut o"
    assert parts("      File x", head)[0] == "  File x"
    assert parts("\tFile x", head.replace("    ", "\t"))[0] == "File x"
    assert label_of(b"    a = 1\n    b()\nKeyError: 1\n    c\n") is None


def test_lines_of_one_writer_have_one_stream():
    assert parts("[rank1]: a")[1] == parts("[rank1]: b")[1] == "[rank1]:"
    assert parts("host | 3% [rank1]: a")[1] == parts("host | 7% [rank1]: b")[1], "a progress bar makes no new writer"


@pytest.mark.parametrize("key", ["log", "message", "msg", "text"])
def test_a_line_that_a_log_shipper_wrapped(key):
    assert parts(json.dumps({"time": 3, key: "[rank1]: x\n"}))[0] == "x"


@pytest.mark.parametrize("raw", ['{"loss": 2}', "{broken", '{"msg": 3}'])
def test_other_objects_stay_as_they_are(raw):
    assert parts(raw)[0] == raw


def test_colours_and_what_was_drawn_over_are_gone():
    assert parts("\x1b[31merror\x1b[0m here")[0] == "error here"
    assert parts("  3%|#   |\r  9%|##  |\r[rank1]: done\r\n")[0] == "done"


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_no_bytes_are_a_crash(raw):
    line = split(4, raw)
    assert line.number == 4
    label_of(raw)


def lines(path, data, words=(b"!",), wanted_next=lambda: False, **limits):
    path.write_bytes(data)
    every = []
    reader = LineReader(path, Limits(**limits), words, wanted_next, lambda block, number: every.append((number, block)))
    return list(reader.lines()), every


def test_only_lines_with_a_word_are_cut_out(tmp_path):
    result, _ = lines(tmp_path / "a", b"one\ntwo !\nthree\nfour ! !\n!")
    assert result == [(2, b"two !"), (4, b"four ! !"), (5, b"!")]


def test_the_words_of_each_line_are_known(tmp_path):
    (tmp_path / "a").write_bytes(b"no\nb a b\nnothing\na\nb\n" + b"x" * 100 + b"a\nno\nc b a\n")
    wants = iter([False, True, False])
    reader = LineReader(tmp_path / "a", Limits(line_bytes=64), (b"a", b"b", b"c "), lambda: next(wants, False))
    rows = [(number, reader.word_indices) for number, _ in reader.lines()]
    assert rows == [(2, (0, 1)), (3, ()), (4, (0,)), (5, (1,)), (6, (0,)), (8, (0, 1, 2))]


def test_a_consumer_in_the_middle_of_something_gets_each_line(tmp_path):
    wants = iter([False, True, True, False, False])
    result, _ = lines(tmp_path / "a", b"a\n!\nb\nc\nd\n!\n", wanted_next=lambda: next(wants, False))
    assert result == [(2, b"!"), (3, b"b"), (4, b"c"), (6, b"!")]


def test_a_line_that_is_too_long_is_cut_and_the_next_ones_are_whole(tmp_path):
    long = b"! " + b"x" * (3 << 20)
    result, every = lines(tmp_path / "a", b"a\n" + long + b"\n! b\n", line_bytes=64)
    assert [(number, len(text)) for number, text in result] == [(2, 64), (3, 3)]
    assert every[0][0] == 1


@given(st.lists(st.sampled_from([b"a", b"! b", b"", b"c" * 40]), max_size=30), st.booleans())
@settings(max_examples=60)
def test_numbers_and_texts_are_those_of_the_file(tmp_path_factory, texts, ends):
    data = b"\n".join(texts) + (b"\n" if ends else b"")
    result, every = lines(tmp_path_factory.mktemp("log") / "a", data)
    assert result == [(n, text) for n, text in enumerate(texts, 1) if b"!" in text]
    assert b"".join(block for _, block in every) == data


def test_utf16_and_marks_are_read_as_text(tmp_path):
    text = "! eins\n! zwei ü\n"
    for data in (text.encode("utf-16"), codecs.BOM_UTF8 + text.encode()):
        assert lines(tmp_path / "a", data)[0] == [(1, b"! eins"), (2, "! zwei ü".encode())]
    assert has_utf16_mark("x".encode("utf-16"))
    assert not has_utf16_mark("x".encode("utf-32"))
    assert not has_utf16_mark(b"x")


def test_a_log_that_was_quoted():
    assert parts("> [rank1]: Traceback (most recent call last):")[0] == "Traceback (most recent call last):"
    assert parts(">   File a.py")[0] == "  File a.py"


@pytest.mark.parametrize(
    "record",
    [
        {"rank": 3, "msg": "step 7"},
        {"global_rank": 3, "message": "step 7"},
        {"textPayload": "[rank3]: step 7", "severity": "ERROR"},
        {"jsonPayload": {"message": "step 7", "rank": 3}, "timestamp": "2031-01-01T00:00:00Z"},
    ],
)
def test_a_line_that_a_collector_wraps_in_json_has_the_rank_of_its_field(record: dict[str, object]) -> None:
    line = split(1, json.dumps(record).encode())
    assert (line.text.strip(), line.rank, line.stream) == ("step 7", 3, "[rank3]:")


@pytest.mark.parametrize("rank", [True, -1, "3", None, 2.0])
def test_what_is_no_rank_in_json(rank: object) -> None:
    assert split(1, json.dumps({"rank": rank, "msg": "step 7"}).encode()).rank is None


HEAD = "2025-10-30 02:11:02,475 - trainer - INFO - "
LEVEL = "[2021-11-25 02:07:16,494] [INFO] "


@pytest.mark.parametrize(
    "parts",
    [
        (f"{HEAD}[rank7]:     assert metadata is not None", f"{HEAD}[rank7]: AssertionError"),
        (
            "  8%|###   | 1999/24128 [1:52:09<20:27:23,  3.33s/it]",
            f"{LEVEL}[logging.py:69:log_dist] [Rank 0] step=2000",
        ),
        (f"{LEVEL}[launch.py:1] Killing subprocess 7", f"{LEVEL.replace('INFO', 'ERROR')}[launch.py:2] ended"),
        ("[rank0]: KeyError: 1", "[rank1]: ValueError: bad"),
        ("(Worker pid=27, ip=172.16.130.64) [W socket.cpp:432] a", "(Worker pid=86) [W socket.cpp:432] b" + 40 * "."),
        (
            "Epoch 1:  41%|#  | 3/7 [00:12<00:16,  4.1s/it]" + 60 * " ",
            "W0920 09:10:41.194000 84 torch/distributed/run.py:7] x",
        ),
        (f'{HEAD}it said "{HEAD}ok" before' + 40 * ".",),
        (f"{HEAD}[rank7]: Saved at 2025-10-30 02:11:02,475 to /ckpt" + 40 * ".",),
        ("[rank0]:[E1217 19:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught a timeout" + 40 * ".",),
        ('{"log": "' + f'{HEAD}a {HEAD}b"' + "}",),
    ],
)
def test_records_that_lost_their_newlines(parts: tuple[str, ...]) -> None:
    assert records(" ".join(parts).encode()) == [part.rstrip().encode() for part in parts]


@pytest.mark.parametrize("kept", [10_000, 2])
def test_a_line_that_repeats_others_with_another_number_is_found(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(module, "_PLAIN", kept)
    shapes = ["status 11", "ok 5%|", "rank 7 of 9", "plain"]
    rows = [shape.replace("1", str(n % 10), 1) for n in range(200) for shape in shapes]
    rows[333:333] = ["status 12 follows"]
    (tmp_path / "log").write_text("\n".join(rows))
    monkeypatch.setattr(module, "blocks", lambda path, *_, **__: [f"{row}\n".encode() for row in rows])
    reader = LineReader(tmp_path / "log", Limits(), (b"status 12", b"s 21"), lambda: False)
    with_words = [number for number, row in enumerate(rows, 1) if "status 12" in row or "s 21" in row]
    assert [number for number, _ in reader.lines()] == with_words
    assert 334 in with_words and len(with_words) == 21
