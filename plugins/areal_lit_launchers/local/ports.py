"""Free TCP ports of this machine."""

from __future__ import annotations

import contextlib
import socket


def free_ports(num_ports: int) -> tuple[int, ...]:
    """Ports on the loopback interface that nobody listens on now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(num_ports)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)
