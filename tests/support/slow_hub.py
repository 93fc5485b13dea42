"""A Hub of one repository over HTTP that takes its time, so that a download can be killed in its middle."""

import hashlib
import http.server
import json
import threading
import time
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def serve(directory: Path, piece: int = 4096, pause: float = 0.01) -> http.server.ThreadingHTTPServer:
    """Serve the files of a directory as ``org/tiny``, in pieces, until ``shutdown``; ranges are honoured."""
    files = {path.name: path.read_bytes() for path in directory.iterdir()}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            headers, body, status = {}, b"", 200
            _, _, name = self.path.partition(f"/resolve/{COMMIT}/")
            if self.path.startswith("/api/models/org/tiny/revision/"):
                siblings = [{"rfilename": name} for name in files]
                body = json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode()
            elif name in files:
                body = files[name]
                headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
                begin = int(self.headers.get("Range", "bytes=0-")[len("bytes=") :].partition("-")[0])
                if begin:
                    headers["Content-Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
                    status, body = 206, body[begin:]
            else:
                status = 404
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for at in range(0, len(body) if with_body else 0, piece):
                try:
                    self.wfile.write(body[at : at + piece])
                except OSError:  # the reader has been killed
                    return
                time.sleep(pause)

        def log_message(self, *arguments: object) -> None:
            """Tests read their own output."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server
