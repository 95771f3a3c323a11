from diagnostics.analysis.environment.values import parse_conf


def test_values_are_taken_as_they_stand():
    read = parse_conf("# site\nNCCL_IB_PCI_RELAXED_ORDERING=1\r\n\nNCCL_DEBUG=WARN\nNCCL_DEBUG=INFO\n")
    assert read.variables == {"NCCL_IB_PCI_RELAXED_ORDERING": "1\r", "NCCL_DEBUG": "WARN"}, "the first counts"
    assert read.oddities == ()


def test_what_a_shell_would_forgive_is_odd_here():
    text = 'export NCCL_DEBUG=WARN\nNCCL_TOPO_FILE="/a b"\nNCCL_FASTRAK_IFNAME= eth0\nNCCL_NET=IB # fast\nNCCL_IB_HCA\n'
    read = parse_conf(text)
    assert read.variables["export NCCL_DEBUG"] == "WARN"
    assert read.variables["NCCL_TOPO_FILE"] == '"/a b"'
    assert read.variables["NCCL_NET"] == "IB # fast"
    assert read.oddities == (
        (1, "file_name", "export NCCL_DEBUG"),
        (2, "file_quotes", '"/a b"'),
        (3, "file_spaces", " eth0"),
        (4, "file_comment", "IB # fast"),
        (5, "file_no_value", "NCCL_IB_HCA"),
    )
