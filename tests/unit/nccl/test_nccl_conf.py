"""The files from which NCCL itself takes variables: which one is the user's, and what cannot be read."""

import os
import pwd
from pathlib import Path

import pytest

from dtk.nccl import nccl_conf


def test_the_file_that_is_named_comes_before_the_one_in_the_home() -> None:
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert nccl_conf.user_file({"NCCL_CONF_FILE": "/x/y.conf"}) == Path("/x/y.conf")
    assert nccl_conf.user_file({}) == nccl_conf.user_file({"NCCL_CONF_FILE": ""}) == home / ".nccl.conf"


def test_a_user_that_the_container_does_not_know_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert nccl_conf.user_file({}) is None and nccl_conf.read(None) is None


def test_variables_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "nccl.conf"
    path.write_bytes(b"# why\nNCCL_DEBUG=INFO\n\nNCCL_IB_SL=3\xff\n")
    read = nccl_conf.read(path)
    assert read is not None and read.path == path
    assert read.content.variables["NCCL_DEBUG"] == "INFO" and read.content.lines["NCCL_IB_SL"] == 4


@pytest.mark.timeout(20)
def test_what_is_no_file_is_as_if_it_were_absent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"#" * (nccl_conf.MOST_BYTES + 1))
    for name in ("pipe", "large", "none", "."):
        assert nccl_conf.read(tmp_path / name) is None
