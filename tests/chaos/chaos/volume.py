"""A small file system in a file for the state directory. It can be filled without harm to the host."""

import contextlib
import os
import subprocess
import time
from pathlib import Path

SIZE = 6 << 30


class Volume:
    def __init__(self, home: Path) -> None:
        self._image = home / "volume.img"
        self.path = home / "volume"
        self._filler = self.path / "filler"

    def open(self) -> None:
        with open(self._image, "wb") as image:
            image.truncate(SIZE)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(self._image)], check=True)
        self.path.mkdir()
        subprocess.run(["mount", "-o", "loop,noatime", str(self._image), str(self.path)], check=True)

    def fill(self) -> None:
        """Takes every free block, including those freed meanwhile, until the second pass finds none."""
        descriptor = os.open(self._filler, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            size, piece = os.fstat(descriptor).st_size, 1 << 30
            while piece >= 4096:
                try:
                    os.posix_fallocate(descriptor, size, piece)
                    size += piece
                except OSError:
                    size = os.fstat(descriptor).st_size
                    piece //= 2
        finally:
            os.close(descriptor)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> list[str]:
        """Unmounts it. Returns a list of errors."""
        problems = []
        if os.path.ismount(self.path):
            for _ in range(100):
                done = subprocess.run(["umount", str(self.path)], capture_output=True, text=True)
                if done.returncode == 0:
                    break
                time.sleep(0.1)
            else:
                problems.append(f"the volume of the state directory is still in use: {done.stderr.strip()}")
                subprocess.run(["umount", "--lazy", str(self.path)], capture_output=True)
        with contextlib.suppress(OSError):
            self._image.unlink()
        return problems
