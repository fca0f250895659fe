"""Ports for a server of one's own."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago, held open together so that they differ."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
