#!/usr/bin/env python3
"""server_smoke.py REDLITE MODEL: starts the server on a free port, asks what a client asks first, and ends it."""
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(base, path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(base + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def wait_until_up(base, server):
    for _ in range(200):
        if server.poll() is not None:
            sys.exit("the server ended at once")
        try:
            return ask(base, "/health")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    sys.exit("the server does not come up")


def check(base):
    models = json.loads(ask(base, "/v1/models"))
    assert models["data"][0]["id"], models
    request = {"messages": [{"role": "user", "content": "Who lives in the forest?"}], "max_tokens": 16, "temperature": 0}
    whole = json.loads(ask(base, "/v1/chat/completions", request))
    text = whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] > 0, whole
    lines = ask(base, "/v1/chat/completions", dict(request, stream=True)).splitlines()
    events = [line[6:] for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1:]
    parts = [json.loads(e)["choices"] for e in events[:-1]]
    streamed = "".join(c[0]["delta"].get("content") or "" for c in parts if c)
    assert streamed == text, (streamed, text)
    try:
        ask(base, "/v1/chat/completions", {"messages": "none"})
        sys.exit("a request that makes no sense was accepted")
    except urllib.error.HTTPError as e:
        assert e.code == 400, e.code
    return len(text)


def main():
    port = free_port()
    server = subprocess.Popen([sys.argv[1], "serve", "-q", "-m", sys.argv[2], "--port", str(port)], stderr=subprocess.PIPE)
    try:
        wait_until_up(f"http://127.0.0.1:{port}", server)
        size = check(f"http://127.0.0.1:{port}")
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=40) in (0, 130, 143), server.returncode
        print(f"answer of {size} bytes, streamed the same; ended with status {server.returncode}")
    finally:
        if server.poll() is None:
            server.kill()


main()
