"""The disk of a virtual machine: a distribution with systemd, its kernel, Isopod, and a door for the tests."""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from harness.packages import cache_root
from runner import archives
from runner.systems import SYSTEMS

ROOT = Path(__file__).resolve().parent.parent.parent
# The kernels that people have. The packages are those of a minimal server.
KERNELS = {"debian": "linux-image-amd64", "ubuntu": "linux-image-generic"}
MACHINES = [system for system in SYSTEMS if not system.has_packaged_rust]
PACKAGES = "systemd-sysv,dbus,initramfs-tools,python3,btrfs-progs,ca-certificates"
SIZE = "8G"
KEY = "e2b_" + "5e" * 20
SETTINGS = "/etc/isopod/isopod.toml"

# A small initial file system: decompressing everything takes an emulated processor half a minute.
BEFORE_PACKAGES = """
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
echo MODULES=list > "$1/etc/initramfs-tools/conf.d/small"
printf '%s\\n' virtio_pci virtio_blk ext4 crc32c_generic > "$1/usr/share/initramfs-tools/modules.d/small"
"""

NETWORK = """[Match]
Name=en* eth*

[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
"""

# Only the host reaches it, and nothing but the tests is in the machine.
DOOR = """
import http.server, subprocess
class Door(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        script = self.rfile.read(int(self.headers["Content-Length"])).decode()
        done = subprocess.run(["sh", "-c", script], capture_output=True)
        self.send_response(200 if done.returncode == 0 else 500)
        self.end_headers()
        self.wfile.write(done.stdout + done.stderr)
http.server.ThreadingHTTPServer(("", 8900), Door).serve_forever()
"""

DOOR_UNIT = """[Service]
ExecStart=/usr/bin/python3 /usr/local/lib/door.py

[Install]
WantedBy=multi-user.target
"""


def make(system, directory, isopod):
    """Makes the disk. Returns it, the kernel and the initial file system."""
    root = directory / "root"
    unpack(base(system), root)
    shutil.copy(debian_package(directory, isopod), root / "root/isopod.deb")
    subprocess.run(["chroot", str(root), "dpkg", "--install", "/root/isopod.deb"], check=True, capture_output=True)
    write(root, SETTINGS, settings(save_paused_after=0))
    write(root, "/etc/isopod/environment", f"ISOPOD_API_KEY={KEY}\nISOPOD_CONFIG={SETTINGS}\n")
    write(root, "/etc/systemd/system/door.service", DOOR_UNIT)
    write(root, "/usr/local/lib/door.py", DOOR)
    write(root, "/etc/systemd/network/10-qemu.network", NETWORK)
    write(root, "/etc/systemd/journald.conf.d/console.conf", "[Journal]\nForwardToConsole=yes\nTTYPath=/dev/ttyS0\n")
    write(root, "/etc/fstab", "/dev/vda / ext4 defaults 0 1\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    write(root, "/etc/resolv.conf", "nameserver 10.0.2.3\n")
    units = ["systemd-networkd", "isopod", "door"]
    subprocess.run(["chroot", str(root), "systemctl", "enable", *units], check=True, capture_output=True)
    disk = directory / "disk.img"
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", str(root), str(disk), SIZE], check=True)
    kernel, initial = directory / "vmlinuz", directory / "initrd.img"
    shutil.copy(one(root / "boot", "vmlinuz-*"), kernel)
    shutil.copy(one(root / "boot", "initrd.img-*"), initial)
    subprocess.run(["rm", "-rf", "--one-file-system", str(root)], check=True)
    return disk, kernel, initial


def settings(save_paused_after):
    """What an operator would write, with plain HTTP because nobody else reaches the machine."""
    return (
        'listen = "0.0.0.0:3000"\ninsecure_listen = true\nprepare = ["none"]\n\n'
        f"[sandbox]\nsave_paused_after = {save_paused_after}\n"
    )


def debian_package(directory, isopod):
    """The package of the program under test, without what only debuggers read."""
    program = directory / "isopod"
    subprocess.run(["strip", "--strip-debug", "-o", str(program), str(isopod)], check=True)
    dist = ["cargo", "run", "--quiet", "--package", "xtask", "--", "dist", "--binary", str(program), "--output", str(directory), "deb"]
    subprocess.run(dist, cwd=ROOT, check=True, capture_output=True)
    return one(directory, "isopod_*.deb")


def base(system):
    """The system without Isopod, which is made once."""
    packages = f"{PACKAGES},{KERNELS[system.distribution]}"
    recipe = hashlib.sha256(f"{packages}\n{BEFORE_PACKAGES}".encode()).hexdigest()[:16]
    kept = cache_root().parent / "machines" / f"{system.name}-{recipe}.tar"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_suffix(".new")
        options = kept.with_suffix(".conf")
        options.write_text("".join(f"{line}\n" for line in archives.transport_settings()))
        command = ["unshare", "--mount", "mmdebstrap", "--mode=root", "--variant=minbase", f"--include={packages}"]
        command += [f"--aptopt={options}", f"--essential-hook={BEFORE_PACKAGES}", "--format=tar"]
        # Where apt's own user can read the keys.
        with tempfile.TemporaryDirectory(prefix="isopod-machine-") as keys:
            Path(keys).chmod(0o755)
            command += [*archives.keyring(system, Path(keys)), system.suite, str(new), *archives.sources(system)]
            subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
        new.rename(kept)
    return kept


def unpack(archive, root):
    root.mkdir()
    subprocess.run(["tar", "--extract", "--numeric-owner", "--xattrs", "-f", str(archive), "-C", str(root)], check=True)


def write(root, path, text):
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def one(directory, pattern):
    (found,) = Path(directory).glob(pattern)
    return found
