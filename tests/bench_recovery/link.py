"""iperf3's rate between two peers of an emulated WAN: what the same link gives to a plain TCP stream."""

from __future__ import annotations

import json
import shutil
import subprocess

from tests.tools.wan import Wan

SECONDS, LIMIT_S = 5, 30.0
MISSING = "iperf3 is not installed: link_share cannot be measured (apt-get install iperf3)"


def measure_mbit(network: Wan, sender: int, receiver: int) -> float | None:
    """Megabits per second of payload, after a second to get going; None without iperf3."""
    iperf3 = shutil.which("iperf3")
    if iperf3 is None:
        return None
    with network.inside(receiver):
        server = subprocess.Popen(
            [iperf3, "--server", "--one-off", "--forceflush"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    with server:
        try:
            assert server.stdout
            while b"listening" not in (line := server.stdout.readline()):
                assert line, "iperf3 does not listen"
            command = [iperf3, "--client", network.address(receiver), "--time", str(SECONDS), "--omit", "1", "--json"]
            with network.inside(sender):
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=LIMIT_S)
        finally:
            server.kill()
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 1e6
