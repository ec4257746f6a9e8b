"""Runs in a sandbox and keeps numbers in many places: its own memory, the memory of a child behind a socket, a file and a
database that are open all the time. Each place is told of a number once, so each shows a number that was lost or repeated."""

import hashlib
import http.server
import json
import os
import socket
import sqlite3
import threading
import time

PORT = 8000
HOME = "/home/user"


class Keeper:
    def __init__(self):
        self.secret = os.urandom(8).hex()
        self.numbers = []
        self.ticks = 0
        self.file = open(f"{HOME}/numbers", "a")
        self.temporary = open("/tmp/numbers", "a")
        self.database = sqlite3.connect(f"{HOME}/numbers.db", check_same_thread=False)
        self.database.execute("pragma journal_mode = wal")
        self.database.execute("create table numbers (number integer)")
        self.child, other = socket.socketpair()
        if os.fork() == 0:
            self.child.close()
            add_up(other)
        other.close()
        threading.Thread(target=self.tick, daemon=True).start()

    def tick(self):
        while True:
            self.ticks += 1
            time.sleep(0.01)

    def add(self, number):
        self.numbers.append(number)
        self.ask_child(number)
        for file in (self.file, self.temporary):
            file.write(f"{number}\n")
            file.flush()
        self.database.execute("insert into numbers values (?)", (number,))
        self.database.commit()

    def ask_child(self, number):
        self.child.sendall(b"%d\n" % number)
        return json.loads(self.child.recv(1000))

    def state(self):
        """Everything but the ticks depends on the numbers that were added, in this order, and on nothing else."""
        database = [row[0] for row in self.database.execute("select number from numbers order by rowid")]
        return {
            "secret": self.secret,
            "pid": os.getpid(),
            "memory": digest(self.numbers),
            "child": self.ask_child(0),
            "file": digest(map(int, open(f"{HOME}/numbers"))),
            "temporary": digest(map(int, open("/tmp/numbers"))),
            "database": digest(database),
            "ticks": self.ticks,
        }


def digest(numbers):
    return hashlib.sha256("".join(f"{number}\n" for number in numbers).encode()).hexdigest()[:16]


def add_up(connection):
    total = 0
    while line := connection.recv(1000):
        total += int(line)
        connection.sendall(json.dumps({"pid": os.getpid(), "total": total}).encode())
    os._exit(0)


class Answer(http.server.BaseHTTPRequestHandler):
    keeper = None

    def do_GET(self):
        if self.path.startswith("/add/"):
            self.keeper.add(int(self.path.removeprefix("/add/")))
        body = json.dumps(self.keeper.state()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    Answer.keeper = Keeper()
    http.server.HTTPServer(("", PORT), Answer).serve_forever()
