"""Variables with their places: this environment and NCCL's files in NCCL's order, and files of many kinds."""

import pytest

from dtk.errors import DtkError
from dtk.nccl import render
from dtk.nccl.variable_sources import given_here, given_in


def test_the_environment_then_the_users_file_then_the_machines(tmp_path, monkeypatch):
    user, system = tmp_path / "user.conf", tmp_path / "system.conf"
    user.write_text("# mine\nNCCL_IB_TIMEOUT=18\nNCCL_DEBUG=INFO\n")
    system.write_text("NCCL_IB_TIMEOUT=20\nNCCL_IB_TC = 41\nNCCL_TOPO_FILE=/t.xml\n")
    monkeypatch.setattr(render, "SYSTEM", system)
    given = given_here({"NCCL_DEBUG": "WARN", "HOME": "/x", "NCCL_CONF_FILE": str(user)})
    assert given.variables["NCCL_DEBUG"] == "WARN"
    assert given.places["NCCL_DEBUG"] == "environment"
    assert (given.variables["NCCL_IB_TIMEOUT"], given.places["NCCL_IB_TIMEOUT"]) == ("18", f"{user}:2")
    assert given.places["NCCL_TOPO_FILE"] == f"{system}:3"
    assert "HOME" not in given.variables
    assert set(given.shadowed) == {("NCCL_DEBUG", f"{user}:3", "INFO"), ("NCCL_IB_TIMEOUT", f"{system}:1", "20")}
    assert [place for place, _, _ in given.oddities] == [f"{system}:2"] * 2
    assert given.read == ("environment", str(user), str(system))


def test_without_nccl_conf_file_it_is_the_file_in_the_home_that_the_system_knows(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = render.user_file({"HOME": str(tmp_path)})
    assert path is not None and path.name == ".nccl.conf" and path.parent != tmp_path, "NCCL does not look at $HOME"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nccl.conf", "NCCL_DEBUG=INFO\n#NCCL_X=1\n", {"NCCL_DEBUG": ("INFO", 1)}),
        (
            "job.sh",
            "#!/bin/sh\nexport NCCL_NET='Socket' NCCL_IB_SL=3\n",
            {"NCCL_NET": ("Socket", 2), "NCCL_IB_SL": ("3", 2)},
        ),
        ("job.sbatch", "#!/bin/bash\n#SBATCH --export=ALL,NCCL_IB_TC=41\nsrun x\n", {"NCCL_IB_TC": ("41", 2)}),
        ("job.sh", "export NCCL_DEBUG=WARN\nexport NCCL_DEBUG=INFO\n", {"NCCL_DEBUG": ("INFO", 2)}),
        ("job.sh", "export NCCL_SOCKET_IFNAME=eth0,eth1\n", {"NCCL_SOCKET_IFNAME": ("eth0,eth1", 1)}),
        (
            "job.sh",
            'export NCCL_TOPO_FILE="$HOME/t.xml" NCCL_HOSTID=$(hostname)\n',
            {"NCCL_TOPO_FILE": ("", 1), "NCCL_HOSTID": ("", 1)},
        ),
        ("job.sh", "# export NCCL_DEBUG=INFO\nexport A=1\n", {}),
        (
            "job",
            "mpirun -x NCCL_IB_HCA==mlx5_0,mlx5_1 -x NCCL_DEBUG=INFO ./a\n",
            {"NCCL_IB_HCA": ("=mlx5_0,mlx5_1", 1), "NCCL_DEBUG": ("INFO", 1)},
        ),
        (
            "Dockerfile",
            "FROM x\nENV NCCL_DEBUG INFO\nENV NCCL_IB_SL=1\n",
            {"NCCL_DEBUG": ("INFO", 2), "NCCL_IB_SL": ("1", 3)},
        ),
    ],
)
def test_lines_of_scripts_and_files(name, text, expected, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    given = given_in(path)
    assert given.variables == {key: value for key, (value, _) in expected.items()}
    assert given.places == {key: f"{path}:{line}" for key, (_, line) in expected.items()}


@pytest.mark.parametrize(
    "text",
    [
        "name: p\nvariables: {NCCL_DEBUG: WARN, NCCL_IB_DISABLE: 'true'}\nabout: {NCCL_DEBUG: {why: x}}\n",
        "nccl: {variables: {NCCL_DEBUG: WARN, NCCL_IB_DISABLE: true}}\n",
        "spec: {containers: [{env: [{name: NCCL_DEBUG, value: WARN}, {name: NCCL_IB_DISABLE, value: 'true'}]}]}\n",
        "services: {a: {environment: [NCCL_DEBUG=WARN, NCCL_IB_DISABLE=true]}}\n",
        "a: 1\n---\nb: {NCCL_DEBUG: WARN}\n---\nNCCL_IB_DISABLE: true\n",
    ],
)
def test_yaml_of_many_kinds(text, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert given_in(path).variables == {"NCCL_DEBUG": "WARN", "NCCL_IB_DISABLE": "true"}


def test_aliases_of_aliases_take_no_time(tmp_path):
    path = tmp_path / "laughs.yaml"
    lines = ["a0: &a0 [NCCL_DEBUG=WARN]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))]
    path.write_text("\n".join(lines))
    with pytest.raises(DtkError, match="it describes too much"):
        given_in(path)
    path.write_text("\n".join(lines[:4]))
    assert given_in(path).variables == {"NCCL_DEBUG": "WARN"}


def test_what_a_preset_leaves_open_is_unknown(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("variables: {NCCL_SOCKET_IFNAME: '={interface}', NCCL_IB_HCA: '={hca?}'}\n")
    assert given_in(path).variables == {"NCCL_SOCKET_IFNAME": "", "NCCL_IB_HCA": ""}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("absent.conf", None),
        ("a.conf", b"\xff\xfe\x00"),
        ("a.conf", b"A=1\0"),
        ("a.conf", b"#" * ((1 << 20) + 1)),
        ("a.yaml", b"{"),
        ("a.yaml", b"[" * 5000),
        ("a.yaml", b"[" + b"1," * 100_001 + b"1]"),
    ],
)
def test_what_cannot_be_read_is_one_line(name, content, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DtkError) as error:
        given_in(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nccl.conf", "NCCL_DEBUG=INFO\r\n", "INFO\r"),
        ("job.sh", "#!/bin/sh\r\nexport NCCL_DEBUG=INFO\r\n", "INFO\r"),
        ("job.sh", "#!/bin/sh\r\nexport NCCL_DEBUG='INFO'\r\n", "INFO\r"),
        ("job.sh", "#!/bin/sh\r\nexport NCCL_DEBUG=INFO A=1\r\n", "INFO"),
        ("nccl.env", "NCCL_DEBUG=INFO\r\n", "INFO"),
        ("Dockerfile", "FROM x\r\nENV NCCL_DEBUG=INFO\r\n", "INFO"),
    ],
)
def test_line_ends_of_windows_are_part_of_the_value_where_the_reader_takes_them_so(name, text, expected, tmp_path):
    (tmp_path / name).write_bytes(text.encode())
    assert given_in(tmp_path / name).variables == {"NCCL_DEBUG": expected}


@pytest.mark.parametrize(
    ("directive", "nodes"),
    [
        ("#SBATCH -N 4", 4),
        ("#SBATCH -N4 -n 8", 4),
        ("#SBATCH --nodes=4", 4),
        ("#SBATCH --exclusive --nodes 4", 4),
        ("#SBATCH --nodes=2-6", 2),
        ("#SBATCH --nodes=2\n#SBATCH --nodes=8", 8),
        ("##SBATCH --nodes=4", None),
        ("#SBATCH --ntasks=4 --job-name=a-N4", None),
        ("#SBATCH --ntasks-per-node=4", None),
    ],
)
def test_a_batch_script_tells_its_nodes(directive, nodes, tmp_path):
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n{directive}\nsrun x\n")
    assert given_in(tmp_path / "job.sbatch").nodes == nodes
