"""A real gateway for tests: HAProxy and the responder, started as the supervisor would, on a free port."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import httpx

from polyray.core.settings import Settings
from polyray.serving.haproxy import HAProxyGateway, gateway_command, gateway_port, gateway_url
from polyray.serving.responder import responder_command, responder_socket
from support.wait import until


class RunningGateway:
    def __init__(self) -> None:
        # Short, since unix sockets lie in it.
        self.state_dir = Path(tempfile.mkdtemp(prefix="pr-gw-", dir="/tmp"))
        self.settings = Settings(state_dir=self.state_dir, gateway_port=0)
        self.gateway = HAProxyGateway(self.settings)
        self.url = gateway_url(self.settings)
        self.port = gateway_port(self.settings)
        self.log = self.state_dir / "gateway.log"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start()

    def start(self) -> None:
        argv, environment = gateway_command(self.settings)
        self._launch("haproxy", argv, environment)
        self.start_responder()
        until(lambda: responder_socket(self.state_dir).exists() and self._well(), what="a gateway that answers")

    def start_responder(self) -> None:
        argv, environment = responder_command(self.settings)
        self._launch("responder", argv, {**os.environ, **environment})

    def pid(self, name: str = "haproxy") -> int:
        return self._processes[name].pid

    def kill(self, name: str = "haproxy") -> None:
        """End a process with -9; HAProxy's workers notice that their master is gone and leave."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: name != "haproxy" or not self._well(), what="a gateway that is gone")

    def close(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.state_dir, ignore_errors=True)

    def _launch(self, name: str, argv: tuple[str, ...], environment: dict[str, str]) -> None:
        with self.log.open("ab") as log:
            self._processes[name] = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)

    def _well(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/polyray/healthz", timeout=1, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False
