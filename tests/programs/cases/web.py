"""Web servers whose pages are seen from outside."""

import json
import re

from runner.program import Program

PORTS = {"root": 8001, "user": 8002}


class Express(Program):
    name, title = "express", "Express"
    version = "node -p \"require('./express/node_modules/express/package.json').version\""

    def use(self, box, account):
        box.download("mkdir express; cd express; npm init -y >/dev/null; npm install --silent express", account)
        port = PORTS[account]
        box.write("express/server.js", EXPRESS, account)
        box.start(f"cd express && PORT={port} node server.js", account)
        assert json.loads(box.get(port, "/hello/edge")) == {"hello": "edge", "uid": box.uid(account)}


EXPRESS = """
const app = require('express')()
app.get('/hello/:name', (request, response) => response.json({ hello: request.params.name, uid: process.getuid() }))
app.listen(process.env.PORT, '127.0.0.1')
"""


class Vite(Program):
    name, title = "vite", "Vite"
    version = "node -p \"require('./vite/node_modules/vite/package.json').version\""
    note = "hot reload through the edge"

    def use(self, box, account):
        box.download("mkdir vite; cd vite; npm init -y >/dev/null; npm install --silent vite", account)
        port = PORTS[account]
        box.write("vite/index.html", '<p id="out"></p><script type="module" src="/main.js"></script>', account)
        box.write("vite/main.js", "document.querySelector('#out').textContent = 'first'\n", account)
        box.start(f"cd vite && npx vite --host 127.0.0.1 --port {port} --strictPort", account)
        assert "/@vite/client" in box.get(port)
        assert "'first'" in box.get(port, "/main.js")
        with HotReload(box, port) as events:
            events.until('"connected"')
            box.write("vite/main.js", "document.querySelector('#out').textContent = 'second'\n", account)
            events.until("full-reload")
        assert "'second'" in box.get(port, "/main.js")


class HotReload:
    """The socket on which Vite tells a page what has changed."""

    def __init__(self, box, port):
        token = re.search(r'wsToken = "([^"]+)"', box.get(port, "/@vite/client")).group(1)
        self.seen = b""
        self.channel, host = box.connect(port)
        fields = [f"GET /?token={token} HTTP/1.1", f"Host: {host}", f"Origin: http://{host}", "Connection: Upgrade", "Upgrade: websocket",
                  "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol: vite-hmr"]
        self.channel.sendall("\r\n".join([*fields, "", ""]).encode())
        self.until(" 101 ")

    def until(self, text):
        """Reads until this text has come. The server sends it unmasked."""
        while text.encode() not in self.seen:
            part = self.channel.recv(65536)
            assert part, f"the socket was closed after {self.seen!r}"
            self.seen += part

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()


class Flask(Program):
    name, title = "flask", "Flask with Gunicorn"
    packages = ("python3-venv",)
    version = "flask/bin/pip list 2>/dev/null | awk '/^(Flask|gunicorn) /{print $1, $2}' | paste -sd, | sed 's/,/, /'"

    def use(self, box, account):
        box.download("python3 -m venv flask; flask/bin/pip install --quiet flask gunicorn", account)
        port = PORTS[account]
        box.write("flask/app.py", FLASK, account)
        box.start(f"cd flask && bin/gunicorn --pid pid --workers 2 --bind 127.0.0.1:{port} app:app", account)
        answers = [json.loads(box.get(port, f"/square/{number}")) for number in range(20)]
        assert [answer["square"] for answer in answers] == [number**2 for number in range(20)]
        assert {answer["uid"] for answer in answers} == {box.uid(account)}
        assert {answer["parent"] for answer in answers} == {int(box.sh("cat flask/pid", account))}


FLASK = """
import os
import flask

app = flask.Flask(__name__)

@app.get("/square/<int:number>")
def square(number):
    return {"square": number**2, "parent": os.getppid(), "uid": os.getuid()}
"""
