"""A small server of OpenAI's streaming API that keeps known times: the truth for ark-bench serve."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

FIRST, GAP = 0.15, 0.03  # seconds to the first token, and between tokens


class TimedServer(ThreadingHTTPServer):
    """`with TimedServer(style) as server:`; `bodies` are the requests so far, `most` how many ran at once;
    `sent` is a second clock: of each answer when its request came and when each of its tokens left.

    The style `faults` joins after the first nine requests. Styles, any of: crlf, comments, bytewise (every byte its own chunk), pairs (two events in one segment), closing
    (no lengths, the connection ends the answer), no_usage and no_ids (such requests get 400), no_done, and the
    faults error_event, cut (the answer ends in the middle) and refuse (503)."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *style, faults=()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.style, self.faults = set(style), set(faults)
        self.bodies, self.paths, self.received, self.sent = [], [], [], []
        self.lock, self.running, self.most, self.arrivals = threading.Lock(), 0, 0, []
        self.slow, self.asked = None, []  # what /debug/slow tells, by its `by`; its queries

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    runs = False

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        self.leave()
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        url = urlsplit(self.path)
        if self.server.slow and url.path == "/debug/slow":
            query = dict(parse_qsl(url.query))
            self.server.asked.append(query)
            return self.answer(200, {"requests": self.server.slow[query["by"]]})
        self.answer(200, {"object": "list", "data": [{"id": "timed", "object": "model"}]})

    def do_POST(self):
        start, server = time.monotonic(), self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.bodies.append(body)
            server.paths.append(self.path)
            server.received.append(dict(self.headers))
            server.arrivals.append(start)
            self.style = server.style | (server.faults if len(server.bodies) > 9 else set())
            server.running += 1
            server.most = max(server.most, server.running)
        self.runs = True
        try:
            self.generate(start, body)
        finally:
            self.leave()

    def leave(self):
        """No longer counted as running: before the last bytes, as whoever has them may ask again at once."""
        with self.server.lock:
            self.server.running -= self.runs
            self.runs = False

    def generate(self, start, body):
        style = self.style
        if "refuse" in style:
            return self.answer(503, {"error": {"message": "full up", "type": "x", "param": None, "code": None}})
        if "no_usage" in style and "stream_options" in body:
            return self.answer(400, {"error": {"message": "stream_options: extra fields are not permitted"}})
        if "no_ids" in style and isinstance(body.get("prompt"), list):
            return self.answer(422, {"detail": "prompt must be a string"})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        if "closing" in style:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.stream(start, body)

    def stream(self, start, body):
        style, chat = self.style, "messages" in body
        count = body.get("max_tokens") or body.get("max_completion_tokens")
        events = [self.choice(chat, f" t{i}", None) for i in range(count)]
        if chat:
            self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        step, times = 2 if "pairs" in style else 1, []
        with self.server.lock:
            self.server.sent.append((start, times))
        for turn, first in enumerate(range(0, count, step)):
            time.sleep(max(0.0, start + FIRST + turn * GAP - time.monotonic()))
            times += [time.monotonic()] * len(events[first:first + step])
            self.event(*events[first:first + step])
            if turn == 2 and "error_event" in style:
                return self.end({"error": {"message": "the device is gone", "code": 503}})
            if turn == 2 and "cut" in style:
                self.close_connection = True
                return self.wfile.flush()
        self.event(self.choice(chat, "", "length"))
        if "stream_options" in body:
            prompt = body.get("prompt") or "x"
            self.event({"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": count,
                                                 "total_tokens": len(prompt) + count}})
        self.end(*[] if "no_done" in style else ["[DONE]"])

    def choice(self, chat, text, finish):
        if chat:
            return {"choices": [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}]}
        return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}

    def event(self, *events):
        style, end = self.style, "\r\n" if "crlf" in self.style else "\n"
        text = ""
        for event in events:
            if "comments" in style:
                text += f": still here{end}id: 7{end}retry: 10{end}{end}"
            data = event if isinstance(event, str) else json.dumps(event)
            text += f"data: {data}{end}{end}"
        self.send(text.encode())

    def send(self, data):
        pieces = [bytes([b]) for b in data] if "bytewise" in self.style else [data]
        for piece in pieces:
            if "closing" in self.style:
                self.wfile.write(piece)
            else:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def end(self, *events):
        self.leave()
        self.event(*events) if events else None
        if "closing" not in self.style:
            self.wfile.write(b"0\r\n\r\n")
