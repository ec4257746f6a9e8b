"""Services that Debian's packages bring: root starts them as services, `user` runs an instance of their own."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runner.program import Program

TUNNEL = Path(__file__).resolve().parents[1] / "runner" / "tunnel.py"

SQL = """
create table numbers (n integer primary key, square bigint);
insert into numbers select n, n * n from generate_series(1, 1000) as n;
create index on numbers (square);
select sum(square) from numbers where square > 100;
"""


class Postgres(Program):
    name, title = "postgresql", "PostgreSQL"
    packages = ("postgresql",)
    version = "psql --version | awk '{print $3}'"
    note = "root starts the service; `user` runs a cluster of their own"

    def set_up(self, box):
        box.sh("pgrep -x postgres >/dev/null || service postgresql start", "root")
        box.until("cd /; su postgres -c 'createuser --superuser root'", "root")

    def use(self, box, account):
        where = "-d postgres"
        if account == "user":
            box.sh("PATH=$(echo /usr/lib/postgresql/*/bin):$PATH; initdb -D data >/dev/null; mkdir socket; "
                   "pg_ctl -D data -w -l log -o \"-p 5433 -k $HOME/socket\" start || { cat log; exit 1; }")
            where += " -h $HOME/socket -p 5433"
        box.write("numbers.sql", SQL, account)
        # 1² to 1000², without 1² to 10².
        assert box.sh(f"psql -qtA -v ON_ERROR_STOP=1 {where} -f numbers.sql", account).strip() == str(333833500 - 385)


class Redis(Program):
    name, title = "redis", "Redis"
    packages = ("redis-server",)
    version = "redis-server --version | grep -o 'v=[^ ]*' | cut -d= -f2"
    note = "with a snapshot by a forked process"

    def use(self, box, account):
        cli = {"root": "redis-cli", "user": "redis-cli -p 6380"}[account]
        if account == "root":
            box.sh("pgrep -x redis-server >/dev/null || service redis-server start", "root")
        else:
            box.sh("mkdir redis; redis-server --port 6380 --daemonize yes --dir $HOME/redis >/dev/null")
        box.until(f"{cli} ping | grep PONG", account)
        assert box.sh(f"{cli} set key before; {cli} append key -after; {cli} get key", account).split() == ["OK", "12", "before-after"]
        box.sh(f"{cli} bgsave", account)
        told = box.until(f"{cli} info persistence | grep rdb_bgsave_in_progress:0; {cli} info persistence", account)
        assert "rdb_last_bgsave_status:ok" in told and "rdb_changes_since_last_save:0" in told, told


class Nginx(Program):
    name, title = "nginx", "nginx"
    packages = ("nginx",)
    version = "/usr/sbin/nginx -v 2>&1 | cut -d/ -f2"

    def use(self, box, account):
        if account == "root":
            box.sh("echo served by root >/var/www/html/page.txt; pgrep -x nginx >/dev/null || service nginx start", "root")
            assert box.get(80, "/page.txt") == "served by root\n"
        else:
            box.sh("mkdir -p www/temp; echo served by user >www/page.txt")
            box.write("www/nginx.conf", NGINX)
            box.sh("/usr/sbin/nginx -p $HOME/www -c $HOME/www/nginx.conf -e $HOME/www/error.log")
            assert box.get(8002, "/page.txt") == "served by user\n"


NGINX = """
pid nginx.pid;
worker_processes 2;
events {}
http {
    access_log access.log;
    client_body_temp_path temp/body;
    proxy_temp_path temp/proxy;
    fastcgi_temp_path temp/fastcgi;
    uwsgi_temp_path temp/uwsgi;
    scgi_temp_path temp/scgi;
    server { listen 127.0.0.1:8002; root .; }
}
"""


class Cron(Program):
    name, title = "cron", "cron"
    packages = ("cron",)
    version = "dpkg-query -W -f '${Version}' cron"

    def set_up(self, box):
        box.sh("pgrep -x cron >/dev/null || service cron start", "root")
        # Both at once: a job fires at the next full minute.
        for account in ("root", "user"):
            box.sh("echo '* * * * * id -un >$HOME/fired' | crontab -", account)

    def use(self, box, account):
        assert box.until("grep . fired", account, seconds=150) == f"{account}\n"


class Sshd(Program):
    name, title = "sshd", "OpenSSH server"
    packages = ("openssh-server", "openssh-client", "websockify")
    version = "ssh -V 2>&1 | grep -o 'OpenSSH_[^ ,]*' | cut -d_ -f2"
    note = "with a key, a terminal and a copied file, within the sandbox and from outside through a WebSocket (`websockify`)"

    def set_up(self, box):
        box.sh("mkdir -p /run/sshd; pgrep -x sshd >/dev/null || /usr/sbin/sshd", "root")
        box.start("websockify 127.0.0.1:8022 127.0.0.1:22")
        box.until("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8022))'")

    def use(self, box, account):
        box.sh("mkdir -pm 700 .ssh; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519; cp .ssh/id_ed25519.pub .ssh/authorized_keys; "
               "printf 'BatchMode yes\\nStrictHostKeyChecking accept-new\\n' >.ssh/config; echo copied >file", account)
        there = f"{account}@127.0.0.1"
        assert box.sh(f"ssh {there} 'id -un; [ -n \"$SSH_CONNECTION\" ] && echo by ssh'", account) == f"{account}\nby ssh\n"
        assert box.sh(f"ssh -tt {there} tty 2>/dev/null </dev/null", account).startswith("/dev/pts/")
        assert box.sh(f"scp -q file {there}:there; cat there", account) == "copied\n"
        self.from_outside(box, account)

    def from_outside(self, box, account):
        """The ssh and scp of the host, with the account's key."""
        with tempfile.TemporaryDirectory(prefix="isopod-ssh-") as place:
            key = Path(place) / "key"
            key.touch(0o600)
            key.write_bytes(box.read_bytes(".ssh/id_ed25519", account))
            (Path(place) / "large").write_bytes(os.urandom(1 << 20))
            proxy = f"ProxyCommand={sys.executable} {TUNNEL} {box.sandbox.get_host(8022)}"
            options = ["-F", "none", "-i", str(key), "-o", proxy, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
            options += ["-o", f"UserKnownHostsFile={place}/known", "-o", "LogLevel=ERROR"]
            there = f"{account}@sandbox"
            assert outside("ssh", *options, there, "id -un; hostname") == f"{account}\n{box.sh('hostname')}"
            outside("scp", *options, f"{place}/large", f"{there}:large")
            assert box.read_bytes("large", account) == (Path(place) / "large").read_bytes()


def outside(*words):
    """Runs a program of the host. Returns what it printed."""
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 0, f"{words[0]} of the host ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


class Supervisor(Program):
    name, title = "supervisor", "Supervisor"
    packages = ("supervisor",)
    version = "supervisord --version"

    def use(self, box, account):
        if account == "root":
            box.write("/etc/supervisor/conf.d/worker.conf", WORKER, "root")
            box.sh("pgrep -x supervisord >/dev/null || service supervisor start", "root")
            box.until("supervisorctl update", "root")
            control = "supervisorctl"
        else:
            box.write("supervisord.conf", SUPERVISOR + WORKER)
            box.sh("supervisord -c supervisord.conf")
            control = "supervisorctl -c supervisord.conf"
        first = self.pid(box, account, control)
        box.sh(f"kill -9 {first}", account)
        end = time.monotonic() + 60
        while self.pid(box, account, control) == first:
            assert time.monotonic() < end, "the worker was not started again"
            time.sleep(0.3)

    def pid(self, box, account, control):
        """The pid of the worker, once it runs."""
        return int(box.until(f"{control} status worker | grep -w RUNNING | sed 's/.*pid \\([0-9]*\\).*/\\1/' | grep .", account))


WORKER = "[program:worker]\ncommand=sleep infinity\n"
SUPERVISOR = """
[unix_http_server]
file=/home/user/supervisor.sock
[supervisord]
logfile=/home/user/supervisord.log
pidfile=/home/user/supervisord.pid
childlogdir=/home/user
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix:///home/user/supervisor.sock
"""


class GitDaemon(Program):
    name, title = "git-daemon", "git daemon"
    packages = ("git",)
    version = "git --version | awk '{print $3}'"
    note = "clone and push over `git://`"

    def use(self, box, account):
        port = {"root": 9418, "user": 9419}[account]
        box.sh("git config --global user.name Someone; git config --global user.email someone@example.com; "
               "git init -q --bare -b main served/project.git; git -C served/project.git config daemon.receivepack true", account)
        box.sh(f"git daemon --detach --reuseaddr --listen=127.0.0.1 --port={port} --base-path=$HOME/served --export-all", account)
        url = f"git://127.0.0.1:{port}/project.git"
        box.until(f"git ls-remote {url}", account)
        box.sh(f"git clone -q {url} first; cd first; git switch -q -c main; echo text >file; git add file; git commit -qm 'Add a file'; "
               "git push -q origin main", account)
        assert box.sh(f"git clone -q {url} second; git -C second log --format=%s; cat second/file", account) == "Add a file\ntext\n"
