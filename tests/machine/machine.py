"""A virtual machine with an emulated processor."""

import socket
import subprocess
import time
import urllib.error
import urllib.request

import disk as disks

BOOT_DEADLINE, OFF_DEADLINE = 900, 600
MEMORY = "3G"


class Machine:
    """Its disk stays when it is off. `url`, `key` and `tail` are what the rounds of the memory suite use."""

    def __init__(self, system, directory, isopod):
        self.disk, self.kernel, self.initial = disks.make(system, directory, isopod)
        self.console = directory / "console.log"
        self.key = disks.KEY
        self.port, self.door = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.process = None

    def boot(self):
        """Switches it on and waits until the server answers."""
        forwarded = f"hostfwd=tcp:127.0.0.1:{self.port}-:3000,hostfwd=tcp:127.0.0.1:{self.door}-:8900"
        command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", MEMORY]
        command += ["-kernel", str(self.kernel), "-initrd", str(self.initial), "-append", "root=/dev/vda rw console=ttyS0"]
        command += ["-drive", f"file={self.disk},if=virtio,format=raw", "-device", "virtio-rng-pci"]
        command += ["-netdev", f"user,id=net,restrict=on,{forwarded}", "-device", "virtio-net-pci,netdev=net"]
        command += ["-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"]
        with open(self.console, "ab") as console:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        self.wait("boot", BOOT_DEADLINE, self.answers)

    def answers(self):
        try:
            return self.opener.open(f"{self.url}/health", timeout=5).status in (200, 204)
        except (urllib.error.URLError, OSError):
            return False

    def wait(self, what, seconds, is_done):
        deadline = time.monotonic() + seconds
        while not is_done():
            if self.process.poll() is not None:
                raise RuntimeError(f"it went off before it could {what}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"it did not {what} in {seconds} s:\n{self.tail()}")
            time.sleep(1)

    def run(self, script):
        """What a script prints that runs there as root."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.door}/", data=script.encode(), method="POST")
        try:
            with self.opener.open(request, timeout=600) as answer:
                return answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"`{script}` failed there: {error.read().decode(errors='replace')}") from None

    def shut_down(self):
        """As its operator does."""
        self.run("systemctl --no-block poweroff")
        self.process.wait(OFF_DEADLINE)
        if "Sending SIGKILL to PID" in self.tail():
            raise RuntimeError(f"something kept it from shutting down for a minute and a half:\n{self.tail()}")

    def cut_power(self):
        """What it had not written to its disk is lost."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def tail(self):
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-60:])


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]

