"""The meeting of the ranks of several nodes."""

import socket


def test_nobody_listens_where_the_ranks_meet():
    from dtk.doctor.nodes import _closed

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        assert _closed(server.getsockname(), 0.1) == "Connection refused"
        server.listen()
        assert _closed(server.getsockname(), 0.1) == ""
    assert "not known" in _closed(("no-such-node.invalid", 1), 30)
