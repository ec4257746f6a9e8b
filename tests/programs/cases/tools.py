"""Tools of developers: debuggers, a terminal multiplexer, containers, and file systems that a program serves."""

from pathlib import Path

from e2b import PtySize

from runner.box import quoted
from runner.program import Program


class Gdb(Program):
    name, title = "gdb", "GDB"
    packages = ("gdb", "gcc", "libc6-dev")
    version = "gdb --version | head -1 | awk '{print $NF}'"
    note = "breakpoint, watchpoint, attach to a running process"

    def use(self, box, account):
        box.write("debug.c", DEBUG, account)
        box.sh("gcc -g -O0 -o debug debug.c", account)
        words = ["break add", "run 5", "bt", "print a + b", "watch total", "continue", "delete", "continue"]
        told = box.sh("gdb -nx -batch " + " ".join(f"-ex '{word}'" for word in words) + " ./debug 2>&1", account)
        for expected in ("#1 ", "in main", "$1 = 42", "Hardware watchpoint", "New value = 42", "exited normally"):
            assert expected in told, f"{expected!r} is not in\n{told}"
        assert "Error disabling address space randomization" not in told, told
        running = box.start("./debug 600000", account)
        told = box.sh(f"gdb -nx -batch -ex bt -p $(pgrep -n -x debug -u {account}) 2>&1", account)
        assert "in main" in told, told
        running.kill()


DEBUG = """
#include <stdlib.h>
#include <unistd.h>

int total;

int add(int a, int b) {
    total = a + b;
    return total;
}

int main(int count, char **words) {
    add(40, 2);
    usleep(atoi(words[1]) * 1000);
    return 0;
}
"""


class Strace(Program):
    name, title = "strace", "strace"
    packages = ("strace",)
    version = "strace --version | head -1 | awk '{print $NF}'"
    note = "follows children, attaches to a running process"

    def use(self, box, account):
        told = box.sh("strace -f -o trace -e trace=execve,openat sh -c 'cat /etc/hostname; true' >/dev/null; cat trace", account)
        assert 'execve("/' in told and '/etc/hostname"' in told and "+++ exited with 0 +++" in told, told
        running = box.start("while true; do sleep 0.1; done", account)
        told = box.sh(f"timeout -s INT 3 strace -f -p {running.pid} 2>&1 || true", account)
        assert "attached" in told and "execve(" in told, told
        running.kill()


class Valgrind(Program):
    name, title = "valgrind", "Valgrind"
    packages = ("valgrind", "libc6-dbg", "gcc", "libc6-dev")
    version = "valgrind --version | cut -d- -f2"
    note = "finds a leak and a read past the end"

    def use(self, box, account):
        box.write("leak.c", LEAK, account)
        box.sh("gcc -g -O0 -o leak leak.c", account)
        told = box.sh("valgrind --leak-check=full --error-exitcode=9 ./leak 2>&1", account, code=9)
        for expected in ("Invalid read of size 4", "40 bytes in 1 blocks are definitely lost", "leak.c:6"):
            assert expected in told, f"{expected!r} is not in\n{told}"


LEAK = """
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    int *numbers = calloc(10, sizeof(int));
    printf("%d\\n", numbers[10]);
    numbers = NULL;
    return 0;
}
"""


class Tmux(Program):
    name, title = "tmux", "tmux"
    packages = ("tmux",)
    version = "tmux -V | awk '{print $2}'"
    note = "a session, and a second client in one of E2B's terminals"

    def use(self, box, account):
        box.sh("tmux new-session -d -s work -x 80 -y 24; tmux send-keys -t work 'echo $((6 * 7)) from $(id -un)' Enter", account)
        box.until(f"tmux capture-pane -p -t work | grep -x '42 from {account}'", account)
        terminal = box.sandbox.pty.create(size=PtySize(rows=24, cols=80), user=account, timeout=60)
        box.sandbox.pty.send_stdin(terminal.pid, b"exec tmux attach -t work\n")
        box.until("tmux list-clients -t work | grep .", account)
        box.sh("tmux detach-client -s work", account)
        seen = []
        terminal.wait(on_pty=seen.append)
        assert f"42 from {account}".encode() in b"".join(map(bytes, seen))
        box.sh("tmux kill-server", account)


class Podman(Program):
    name, title = "podman", "Podman"
    packages = ("podman", "crun", "uidmap", "libcap2-bin", "busybox-static")
    features = ("userns",)
    version = "podman --version | awk '{print $3}'"
    note = "with `userns` and [its settings](run.md#podman): builds an image, and runs a server in a container"

    def set_up(self, box):
        page = (Path(__file__).resolve().parents[3] / "docs" / "run.md").read_text()
        box.sh(page.split("### Podman")[1].split("```sh\n")[1].split("```")[0])
        box.write("Dockerfile", DOCKERFILE, "root")
        box.sh("mkdir -p image/bin; cp $(command -v busybox) image/bin/; cp -r image Dockerfile /tmp/", "root")

    def use(self, box, account):
        # A directory is the first image, so that no registry is needed.
        told = box.sh("podman run --rm --rootfs /tmp/image /bin/busybox echo hello from inside", account)
        assert told == "hello from inside\n", told
        box.sh("tar -C /tmp/image -c . | podman import --quiet - localhost/busybox", account)
        box.sh("podman build --quiet --tag localhost/server --file /tmp/Dockerfile /tmp", account)
        ids = box.sh("podman run --rm localhost/server /bin/busybox sh -c 'busybox id -u; busybox stat -c %u /page'", account)
        assert ids == "1000\n0\n", ids
        port = 8100 + box.uid(account) % 100
        box.sh(f"podman run --detach --name server localhost/server /bin/busybox httpd -f -p {port} -h /", account)
        assert box.get(port, "/page") == "from a container\n"
        assert box.sh("podman exec server /bin/busybox id -u", account) == "1000\n"
        box.sh("podman stop --time 1 server; podman rm server", account)


DOCKERFILE = """
FROM localhost/busybox
RUN ["/bin/busybox", "sh", "-c", "echo from a container > /page"]
USER 1000
"""


class Bubblewrap(Program):
    name, title = "bwrap", "bubblewrap"
    packages = ("bubblewrap",)
    features = ("userns",)
    version = "bwrap --version | awk '{print $2}'"
    note = "with `userns` and `--ro-bind /proc /proc`: own users, processes and network, files read-only but for one directory"

    def use(self, box, account):
        wrap = "bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --tmpfs /tmp --bind $PWD/kept $PWD/kept"
        inside = """id -un
            touch /etc/x 2>/dev/null || echo read-only
            ls /tmp | wc -l
            tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '
            echo written >kept/file"""
        box.sh(f"mkdir kept; touch /tmp/of-{account}", account)
        told = box.sh(f"{wrap} --ro-bind /proc /proc sh -c {quoted(inside)}; cat kept/file", account)
        assert told == f"{account}\nread-only\n0\nlo\nwritten\n", told
        # The kernel refuses it, because parts of the sandbox's own are covered.
        box.sh(f"{wrap} --proc /proc true", account, code=1)


class Sshfs(Program):
    name, title = "sshfs", "sshfs"
    packages = ("sshfs", "openssh-server", "openssh-client")
    features = ("fuse",)
    version = "dpkg-query -W -f '${Version}' sshfs | cut -d- -f1"
    note = "with `fuse`: a directory of an OpenSSH server, read and written, and unmounted"

    def set_up(self, box):
        box.sh("mkdir -p /run/sshd; pgrep -x sshd >/dev/null || /usr/sbin/sshd", "root")

    def use(self, box, account):
        box.sh("mkdir -pm 700 .ssh; mkdir there here; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519; "
               "cp .ssh/id_ed25519.pub .ssh/authorized_keys; echo seen >there/file", account)
        box.sh("sshfs -o StrictHostKeyChecking=no localhost:there here", account)
        assert box.sh("cat here/file; echo more >here/more; cat there/more; mv here/more here/moved; ls there", account) == "seen\nmore\nfile\nmoved\n"
        assert box.sh("stat -f -c %T here", account) == "fuseblk\n"
        box.sh(unmount("here"), account)


class S3fs(Program):
    name, title = "s3fs", "s3fs"
    packages = ("s3fs",)
    features = ("fuse",)
    version = "s3fs --version | head -1 | grep -o 'V[0-9.]*' | tr -d V"
    note = "with `fuse`: a bucket of an S3 server in the sandbox, read and written, and unmounted"

    def set_up(self, box):
        serve_bucket(box)

    def use(self, box, account):
        box.write("passwd", "id:secret", account)
        # A bucket for both: what one account has written, the other one finds.
        box.sh("chmod 600 passwd; mkdir s3; s3fs bucket s3 -o url=http://127.0.0.1:9000,use_path_request_style,passwd_file=$HOME/passwd", account)
        box.sh(f"echo by {account} >s3/{account}; mkdir s3/of-{account}; cp s3/{account} s3/of-{account}/copy", account)
        assert box.sh(f"{ASK}/{account}; cat s3/of-{account}/copy", account) == f"by {account}\n" * 2
        if account == "user":
            assert box.sh("ls s3", account) == "of-root\nof-user\nroot\nuser\n"
        box.sh(unmount("s3"), account)


class Goofys(Program):
    name, title = "goofys", "goofys"
    packages = ("fuse",)
    features = ("fuse",)
    version = "/usr/local/bin/goofys --version 2>&1 | awk '{print $NF}'"
    note = "with `fuse`: a bucket of an S3 server in the sandbox"

    def set_up(self, box):
        release = "https://github.com/kahing/goofys/releases/latest/download/goofys"
        box.download(f"curl -fsSL --max-time 300 -o /usr/local/bin/goofys {release} && chmod 755 /usr/local/bin/goofys", "root")
        serve_bucket(box)

    def use(self, box, account):
        box.sh("mkdir s3; AWS_ACCESS_KEY_ID=id AWS_SECRET_ACCESS_KEY=secret /usr/local/bin/goofys --endpoint http://127.0.0.1:9000 bucket s3", account)
        box.sh(f"echo by {account} >s3/{account}", account)
        assert box.sh(f"{ASK}/{account}; cat s3/{account}", account) == f"by {account}\n" * 2
        box.sh(unmount("s3"), account)


ASK = "curl -s --noproxy '*' http://127.0.0.1:9000/bucket"


def serve_bucket(box):
    """Starts an S3 server in the sandbox."""
    box.write("/tmp/bucket.py", (Path(__file__).resolve().parents[1] / "bucket.py").read_text(), "root")
    box.start("exec python3 /tmp/bucket.py", "root")
    box.until(f"{ASK}/ >/dev/null")


def unmount(place):
    """Unmounts it by the program that the sandbox has, and fails unless nothing of it can be seen."""
    return f"fusermount3 -u {place} 2>/dev/null || fusermount -u {place}; [ -z \"$(ls {place})\" ]"
