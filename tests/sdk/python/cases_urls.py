"""Access without the SDK: signed file URLs, ports of the sandbox, and the tokens that protect them."""

import socket
import ssl
import time
import urllib.parse

import e2b
from harness.cases import case
from kit import URL, fetch, go, multipart, raises, until


@case("urls", core=True)
async def a_signed_url_downloads_the_file(sdk):
    async with sdk.sandbox(secure=True) as sandbox:
        await go(sandbox.files.write("a b&c.txt", "content"))
        status, _, body = fetch(sandbox.download_url("a b&c.txt"))
        assert (status, body) == (200, b"content")
        status, _, body = fetch(sandbox.download_url("/home/user/a b&c.txt", user="user", use_signature_expiration=60))
        assert (status, body) == (200, b"content")


@case("urls", core=True)
async def a_signed_url_takes_an_upload(sdk):
    async with sdk.sandbox(secure=True) as sandbox:
        body, headers = multipart(b"uploaded")
        status, _, answer = fetch(sandbox.upload_url("/tmp/up.txt"), "POST", body, headers)
        assert status == 200, answer
        assert await go(sandbox.files.read("/tmp/up.txt")) == "uploaded"


@case("urls")
async def an_expired_url_is_refused_with_the_known_words(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("f", "x"))
        url = sandbox.download_url("f", use_signature_expiration=1)
        assert fetch(url)[0] == 200
        time.sleep(2.1)
        status, _, body = fetch(url)
        assert status == 401 and b"signature is already expired" in body


@case("urls")
async def a_changed_url_is_refused(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("f", "x"))
        await go(sandbox.files.write("g", "y"))
        url = sandbox.download_url("f", use_signature_expiration=60)
        parts = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query))

        def changed(**new):
            return f"{URL}/files?" + urllib.parse.urlencode({k: v for k, v in (parts | new).items() if v is not None})

        assert fetch(changed())[0] == 200
        later = str(int(parts["signature_expiration"]) + 1000)
        for new in [
            {"path": "g"},
            {"username": "root"},
            {"signature_expiration": later},
            {"signature_expiration": None},
            {"signature": "v1_" + "A" * 43},
        ]:
            assert fetch(changed(**new))[0] == 401, new
        body, headers = multipart(b"z")
        assert fetch(changed(), "POST", body, headers)[0] == 401
        assert fetch(f"{URL}/files?path=f")[0] in (401, 404)


@case("urls")
async def the_url_of_a_killed_sandbox_is_dead(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("f", "x"))
        url = sandbox.download_url("f")
    assert fetch(url)[0] in (401, 404, 502)


@case("secure", core=True)
async def a_secure_sandbox_wants_its_token(sdk):
    async with sdk.sandbox(secure=True) as sandbox:
        await go(sandbox.files.write("f", "x"))
        route = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
        assert fetch(f"{URL}/health", headers=route)[0] == 204
        assert fetch(f"{URL}/files?path=f", headers=route)[0] == 401
        status, _, body = fetch(
            f"{URL}/process.Process/List", "POST", b"{}", route | {"Content-Type": "application/json"}
        )
        assert status == 401 and b"access token" in body
        wrong = route | {"X-Access-Token": "wrong"}
        assert fetch(f"{URL}/files?path=f", headers=wrong)[0] == 401


@case("secure")
async def a_second_client_gets_the_token_by_connecting(sdk):
    async with sdk.sandbox() as first:
        await go(first.files.write("f", "x"))
        second = await go(sdk.Sandbox.connect(first.sandbox_id))
        assert await go(second.files.read("f")) == "x"
        assert fetch(second.download_url("f"))[2] == b"x"


@case("secure")
async def without_public_traffic_ports_want_the_traffic_token(sdk):
    async with sdk.sandbox(network={"allow_public_traffic": False}) as sandbox:
        assert sandbox.traffic_access_token
        await serve(sandbox, 8000)
        route = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8000"}
        token = {"e2b-traffic-access-token": sandbox.traffic_access_token}
        assert fetch(URL, headers=route)[0] == 403
        assert fetch(URL, headers=route | {"e2b-traffic-access-token": "wrong"})[0] == 403
        await until(lambda: fetch(URL, headers=route | token)[0] == 200)


@case("secure")
async def internals_of_the_guest_are_out_of_reach(sdk):
    async with sdk.sandbox() as sandbox:
        route = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
        for path in ("/init", "/freeze", "/upgrade"):
            assert fetch(f"{URL}{path}", "POST", b"{}", route)[0] == 404, path


async def serve(sandbox, port):
    """A web server inside, which serves a page and echoes posted data."""
    program = (
        "import http.server\n"
        "class H(http.server.SimpleHTTPRequestHandler):\n"
        "    def do_POST(self):\n"
        "        body = self.rfile.read(int(self.headers['content-length']))\n"
        "        self.send_response(201); self.send_header('X-Seen-Host', self.headers['host'])\n"
        "        self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)\n"
        f"http.server.ThreadingHTTPServer(('127.0.0.1', {port}), H).serve_forever()\n"
    )
    await go(sandbox.files.write("/tmp/site/index.html", "<h1>inside</h1>"))
    await go(sandbox.files.write("/tmp/serve.py", program))
    await go(sandbox.commands.run("python3 /tmp/serve.py", background=True, cwd="/tmp/site", timeout=0))


@case("ports", core=True)
async def a_port_is_reached_by_headers(sdk):
    async with sdk.sandbox() as sandbox:
        await serve(sandbox, 8000)
        route = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8000"}
        await until(lambda: fetch(URL, headers=route)[0] == 200)
        status, _, body = fetch(f"{URL}/index.html", headers=route)
        assert (status, body) == (200, b"<h1>inside</h1>")
        sent = b"x" * 3_000_000
        status, _, body = fetch(f"{URL}/any", "POST", sent, route)
        assert status == 201 and body == sent


HEAD_ECHO = """
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        head = b"".join(iter(self.rfile.readline, b"\\r\\n"))
        self.wfile.write(b"HTTP/1.1 200 OK\\r\\nX-oDD-Name: 1\\r\\nconnection: close\\r\\n\\r\\n" + head)
socketserver.ThreadingTCPServer(("127.0.0.1", 8000), Echo).serve_forever()
"""


@case("ports")
async def header_names_arrive_as_they_were_written(sdk):
    """Old programs look for `Host:` rather than `host:`."""
    where = urllib.parse.urlsplit(URL)

    def ask(sandbox):
        channel = socket.create_connection((where.hostname, where.port), timeout=10)
        if where.scheme == "https":
            channel = ssl.create_default_context().wrap_socket(channel, server_hostname=where.hostname)
        route = f"E2b-Sandbox-Id: {sandbox.sandbox_id}\r\nE2b-Sandbox-Port: 8000\r\n"
        request = f"GET / HTTP/1.1\r\nHost: localhost\r\n{route}x-lower: 1\r\nX-UPPER: 2\r\nConnection: close\r\n\r\n"
        with channel:
            channel.sendall(request.encode())
            return b"".join(iter(lambda: channel.recv(65536), b"")).decode()

    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("/tmp/echo.py", HEAD_ECHO))
        await go(sandbox.commands.run("python3 /tmp/echo.py", background=True, timeout=0))
        answer = await until(lambda: "200 OK" in (seen := ask(sandbox)) and seen)
        for line in ("X-oDD-Name: 1", "Host: localhost", "x-lower: 1", "X-UPPER: 2", "X-Forwarded-Proto: " + where.scheme):
            assert line in answer.split("\r\n"), answer


@case("ports")
async def a_port_is_reached_by_host_name_and_by_path(sdk):
    async with sdk.sandbox() as sandbox:
        await serve(sandbox, 8000)
        host = sandbox.get_host(8000)
        assert host.startswith(f"8000-{sandbox.sandbox_id}.")
        await until(lambda: fetch(URL, headers={"Host": host})[0] == 200)
        assert fetch(f"{URL}/index.html", headers={"Host": host})[2] == b"<h1>inside</h1>"
        status, headers, body = fetch(f"{URL}/sandbox/{sandbox.sandbox_id}/8000/index.html")
        assert (status, body) == (200, b"<h1>inside</h1>")
        assert "sandbox" in headers["Content-Security-Policy"]


@case("ports", when=URL.startswith("https:"))
async def get_host_is_a_name_that_the_certificate_is_for(sdk):
    where = urllib.parse.urlsplit(URL)
    async with sdk.sandbox() as sandbox:
        await serve(sandbox, 8000)
        host = sandbox.get_host(8000)
        name = host.split(":")[0]

        def page():
            plain = socket.create_connection((where.hostname, where.port), timeout=10)
            with ssl.create_default_context().wrap_socket(plain, server_hostname=name) as channel:
                channel.sendall(f"GET /index.html HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                return b"".join(iter(lambda: channel.recv(65536), b""))

        await until(lambda: b"<h1>inside</h1>" in page())


@case("ports")
async def closed_ports_and_missing_sandboxes_say_so(sdk):
    async with sdk.sandbox() as sandbox:
        route = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8111"}
        status, _, body = fetch(URL, headers=route)
        assert status == 502 and b"port is not open" in body
    status, _, body = fetch(URL, headers=route)
    assert status == 502 and b"was not found" in body


@case("ports")
async def the_host_header_can_be_masked(sdk):
    async with sdk.sandbox(network={"mask_request_host": "localhost:${PORT}"}) as sandbox:
        await serve(sandbox, 8000)
        route = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8000"}
        await until(lambda: fetch(URL, headers=route)[0] == 200)
        assert fetch(URL, "POST", b"x", route)[1]["X-Seen-Host"] == "localhost:8000"


@case("ports")
async def a_port_of_a_background_server_opens_from_a_second_sandbox_object(sdk):
    async with sdk.sandbox() as sandbox:
        await serve(sandbox, 9000)
        other = await go(sdk.Sandbox.connect(sandbox.sandbox_id))
        host = other.get_host(9000)
        await until(lambda: fetch(URL, headers={"Host": host})[0] == 200)
        async with raises(e2b.SandboxException):
            await go(other.files.read("/tmp/not-there"))
