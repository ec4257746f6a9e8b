"""A zygote whose forks enter namespaces that the test creates. Needs root, as the node does."""

import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import unittest

from support import DRIVER, TIMEOUT, Kernel

ORDER = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"]
FLAGS = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000 | 0x02000000 | 0x00000080
RANGE = 400_000
# Allows everything except `sethostname`, which fails with EPERM: this shows that the filter is installed.
SETHOSTNAME = {"x86_64": 170, "aarch64": 161}[os.uname().machine]
FILTER = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x20, 0, 0, 0),
        (0x15, 0, 1, SETHOSTNAME),
        (0x06, 0, 0, 0x00050001),
        (0x06, 0, 0, 0x7FFF0000),
    )
)


def close_except(kept):
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                # The descriptor that listed the directory.
                pass


class Sandbox:
    """Namespaces with a pid 1 that only waits and reaps, as the guest would."""

    def __init__(self):
        read, write = os.pipe()
        go, say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.become_init(read, write, go, say)
        os.close(write)
        os.close(go)
        os.read(read, 1)
        self.map_ids()
        os.write(say, b"x")
        os.close(say)
        self.init = int(os.read(read, 20))
        self.read = read

    def become_init(self, read, write, go, say):
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            # Close all descriptors of the test, and exit with it.
            close_except({0, 1, 2, write, go})
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)
            if libc.unshare(FLAGS) != 0:
                os._exit(2)
            os.write(write, b"r")
            os.read(go, 1)
            inner = os.fork()
            if inner == 0:
                self.wait_for_ever(libc, write)
            os.write(write, b"%d" % inner)
            os.waitpid(inner, 0)
        finally:
            os._exit(0)

    @staticmethod
    def wait_for_ever(libc, write):
        os.setresuid(0, 0, 0)
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        libc.mount(b"none", b"/", None, 0x40000 | 0x4000, None)
        libc.mount(b"proc", b"/proc", b"proc", 0, None)
        os.close(write)
        while True:
            try:
                os.wait()
            except ChildProcessError:
                signal.sigtimedwait([signal.SIGCHLD], 0.02)

    def map_ids(self):
        for name in ("uid_map", "gid_map"):
            with open("/proc/%d/%s" % (self.pid, name), "w", encoding="ascii") as file:
                file.write("0 %d 65536" % RANGE)

    def namespaces(self):
        return [os.open("/proc/%d/ns/%s" % (self.init, name), os.O_RDONLY) for name in ORDER]


    def close(self):
        try:
            os.kill(self.init, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)
        os.close(self.read)


class Zygote:
    def __init__(self, warm="shell"):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(TIMEOUT)
        command = [sys.executable, "-s", DRIVER, "zygote", "--fd", str(theirs.fileno()), "--warm", warm]
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={"SECRET": "of the host"}
        )
        theirs.close()
        self.ready = json.loads(self.socket.recv(65536))

    def enter(self, sandbox, **changes):
        """Admits a fork, as the server does. Returns the guest's end of the forkserver's socket."""
        connection, admission = self.order(sandbox, **changes)
        with admission:
            for where in ("outside", "inside"):
                message = json.loads(admission.recv(65536))
                if message != {"op": where}:
                    raise AssertionError(message)
                admission.send(b"go")
        return connection

    def order(self, sandbox, **changes):
        """Returns the guest's end of the forkserver's socket, and the server's end of the admission."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(TIMEOUT)
        server, fork = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.settimeout(TIMEOUT)
        program = os.memfd_create("filter")
        os.write(program, changes.pop("program", FILTER))
        request = {
            "op": "enter", "uid": 1000, "gid": 1000, "groups": [1000], "home": "/",
            "namespaces": ORDER, "caps_kept": [0, 1], "rlimits": {"nofile": [512, 512]}, **changes,
        }  # fmt: skip
        fds = sandbox.namespaces() + [program, fork.fileno(), theirs.fileno()]
        socket.send_fds(self.socket, [json.dumps(request).encode()], fds)
        for fd in fds[:-2]:
            os.close(fd)
        fork.close()
        theirs.close()
        return ours, server

    def receive(self):
        return json.loads(self.socket.recv(65536))

    def close(self):
        self.socket.close()
        self.process.wait(TIMEOUT)


class EnteredForkserver:
    """A forkserver inside a sandbox, as `Kernel` needs it."""

    def __init__(self, connection):
        self.socket = connection
        self.ready = self.receive()

    def receive(self):
        return json.loads(self.socket.recv(65536))


@unittest.skipUnless(os.geteuid() == 0, "entering namespaces needs root")
class Entering(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.zygote = Zygote()
        cls.addClassCleanup(cls.zygote.close)

    def setUp(self):
        self.sandbox = Sandbox()
        self.addCleanup(self.sandbox.close)

    def enter(self, **changes):
        connection = self.zygote.enter(self.sandbox, **changes)
        self.addCleanup(connection.close)
        return connection

    def order(self, **changes):
        connection, admission = self.zygote.order(self.sandbox, **changes)
        self.addCleanup(connection.close)
        self.addCleanup(admission.close)
        return connection, admission

    def kernel(self, **changes):
        self.forkserver = EnteredForkserver(self.enter(**changes))
        kernel = Kernel.start(self.forkserver, "c", "/", {}, True)
        self.addCleanup(kernel.close)
        return kernel

    def value(self, kernel, code):
        cell = kernel.run(code)
        self.assertEqual(cell.errors, [], code)
        return cell.text

    def test_a_kernel_inside_has_the_users_rights_and_no_more(self):
        kernel = self.kernel()
        self.assertEqual(self.value(kernel, "import os; (os.getresuid(), os.getresgid(), os.getgroups())"), "((1000, 1000, 1000), (1000, 1000, 1000), [1000])")
        status = kernel.run("dict(l.split(':\\t') for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)").main["json"]
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            self.assertEqual(int(status[name], 16), 0, name)
        self.assertEqual(int(status["CapBnd"], 16), 0b11)
        self.assertEqual((status["Seccomp"].strip(), status["NoNewPrivs"].strip()), ("2", "0"))
        self.assertEqual(self.value(kernel, "import resource; resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE)"), "((1, 1), (512, 512))")
        self.assertEqual(kernel.run("import socket; socket.sethostname('x')").error["name"], "PermissionError")

    def test_root_inside_keeps_the_capabilities_of_the_order_and_no_more(self):
        kernel = self.kernel(uid=0, gid=0, groups=[])
        self.assertEqual(self.value(kernel, "import os; (os.getresuid(), os.getresgid(), os.getgroups())"), "((0, 0, 0), (0, 0, 0), [])")
        status = kernel.run("dict(l.split(':\\t') for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)").main["json"]
        sets = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
        self.assertEqual(sets, {"CapInh": 0, "CapPrm": 0b11, "CapEff": 0b11, "CapBnd": 0b11, "CapAmb": 0})
        self.assertEqual(kernel.run("import socket; socket.sethostname('x')").error["name"], "PermissionError")

    def test_a_kernel_inside_is_in_every_namespace(self):
        kernel = self.kernel()
        inside = kernel.run("import os; {n: os.readlink('/proc/self/ns/' + n) for n in %r}" % ORDER).main["json"]
        expected = {name: os.readlink("/proc/%d/ns/%s" % (self.sandbox.init, name)) for name in ORDER}
        self.assertEqual(inside, expected)

    def test_the_forkserver_is_a_child_of_the_sandboxs_init(self):
        kernel = self.kernel()
        parent = self.value(kernel, "import os; open('/proc/%d/stat' % os.getppid()).read().rsplit(')', 1)[1].split()[1]")
        self.assertEqual(parent, "1")

    def test_nothing_from_outside_is_left(self):
        kernel = self.kernel()
        self.assertEqual(self.value(kernel, "import os; sorted(int(n) for n in os.listdir('/proc/self/fd'))[:4]"), "[0, 1, 2, 3]")
        forkserver = kernel.run("import os; [os.readlink('/proc/%d/fd/%s' % (os.getppid(), n)) for n in os.listdir('/proc/%d/fd' % os.getppid())]").main["json"]
        allowed = ("/dev/null", "socket:", "anon_inode:[eventpoll]")
        self.assertEqual([link for link in forkserver if not link.startswith(allowed)], [])
        self.assertEqual(self.value(kernel, "str(os.environ.get('SECRET'))"), "None")

    def test_several_sandboxes_at_once(self):
        others = [Sandbox() for _ in range(3)]
        orders = [self.zygote.order(sandbox) for sandbox in others]
        for where in (b'{"op": "outside"}', b'{"op": "inside"}'):
            for _, admission in orders:
                self.assertEqual(admission.recv(100), where)
                admission.send(b"go")
        connections = [connection for connection, _ in orders]
        for _, admission in orders:
            admission.close()
        for sandbox, connection in zip(others, connections):
            self.assertEqual(EnteredForkserver(connection).ready["op"], "ready")
            connection.close()
            sandbox.close()

    def test_the_sandboxs_end_is_the_forkservers(self):
        self.kernel()
        os.kill(self.sandbox.init, signal.SIGKILL)
        self.assertEqual(self.forkserver.socket.recv(100), b"")

    def test_a_failing_step_is_reported_by_its_name(self):
        for changes, step in (
            ({"uid": 70_000}, "uid"),
            ({"home": "/nowhere"}, "home"),
            ({"program": b"123"}, "seccomp"),
            ({"rlimits": {"nosuch": [1, 1]}}, "rlimits"),
            ({"namespaces": ["mnt", "user"] + ORDER[2:]}, "setns"),
        ):
            connection, admission = self.order(**changes)
            failed = json.loads(admission.recv(1000))
            if failed == {"op": "outside"}:
                admission.send(b"go")
                failed = json.loads(admission.recv(1000))
            self.assertEqual(failed["op"], "failed")
            self.assertTrue(failed["step"].startswith(step), failed)
            self.assertEqual(connection.recv(100), b"", "no forkserver may live")
        self.assertEqual(self.kernel().run("1").text, "1")

    def test_a_fork_that_is_not_admitted_exits(self):
        for steps in (0, 1):
            connection, admission = self.order()
            for _ in range(steps):
                self.assertEqual(admission.recv(100), b'{"op": "outside"}')
                admission.send(b"go")
            admission.close()
            self.assertEqual(connection.recv(100), b"", "no forkserver may live")

    def test_a_malformed_request_is_reported_and_the_zygote_continues(self):
        for changes in ({"namespaces": ["nosuch"] + ORDER[1:]}, {"namespaces": ORDER[1:]}):
            connection, admission = self.order(**changes)
            failed = self.zygote.receive()
            self.assertEqual((failed["op"], failed["step"]), ("failed", "request"))
            self.assertEqual((connection.recv(100), admission.recv(100)), (b"", b""))
        self.assertEqual(self.kernel().run("1").text, "1")


@unittest.skipUnless(os.geteuid() == 0, "entering namespaces needs root")
class Ending(unittest.TestCase):
    def test_a_zygote_ends_with_its_socket_and_forkservers_live_on(self):
        zygote, sandbox = Zygote(), Sandbox()
        self.addCleanup(sandbox.close)
        forkserver = EnteredForkserver(zygote.enter(sandbox))
        zygote.close()
        self.assertEqual(zygote.process.returncode, 0)
        kernel = Kernel.start(forkserver, "c", "/", {}, True)
        self.assertEqual(kernel.run("1 + 1").text, "2")
        kernel.close()
        forkserver.socket.close()


if __name__ == "__main__":
    unittest.main()
