"""As much of S3 as s3fs needs, on port 9000: a bucket in memory. The tests of kernel features use it too."""

import http.server
import urllib.parse

objects = {}

class Bucket(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def key(self):
        return urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).removeprefix('/bucket').lstrip('/')

    def answer(self, status, body=b'', headers={}, length=None):
        self.send_response(status)
        for name, value in {**headers, 'Content-Length': len(body) if length is None else length}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self):
        found = objects.get(self.key())
        self.answer(*((200, b'', found[1], len(found[0])) if found else (404,)))

    def do_GET(self):
        if not self.key():
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
            keys = [key for key in objects if key.startswith(query.get('prefix', [''])[0])]
            listed = ''.join(f'<Contents><Key>{key}</Key></Contents>' for key in keys)
            listed += '<Name>bucket</Name><IsTruncated>false</IsTruncated>'
            xml = f'<?xml version="1.0"?><ListBucketResult>{listed}</ListBucketResult>'
            return self.answer(200, xml.encode(), {'Content-Type': 'application/xml'})
        found = objects.get(self.key())
        self.answer(*((200, *found) if found else (404,)))

    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        kept = {name: value for name, value in self.headers.items() if name.lower().startswith(('x-amz-meta-', 'content-type'))}
        source = self.headers.get('x-amz-copy-source')
        if source:
            body = objects[urllib.parse.unquote(source).lstrip('/').removeprefix('bucket/')][0]
        objects[self.key()] = (body, {**kept, 'ETag': '"e"', 'Last-Modified': 'Tue, 01 Jan 2030 00:00:00 GMT'})
        copied = b'<?xml version="1.0"?><CopyObjectResult><ETag>"e"</ETag></CopyObjectResult>'
        self.answer(200, copied if source else b'', {'ETag': '"e"'})

    def do_DELETE(self):
        objects.pop(self.key(), None)
        self.answer(204)

    def log_message(self, *words):
        pass

http.server.ThreadingHTTPServer(('127.0.0.1', 9000), Bucket).serve_forever()
