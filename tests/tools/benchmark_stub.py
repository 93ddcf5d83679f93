"""A server that answers as engines do, after the times of a made-up engine: the benchmark tools run against it to make sample files.

    python tests/tools/benchmark_stub.py --port 8931 --model meta-llama/Llama-3.1-8B-Instruct

Speaks what `vllm bench serve`, SGLang's `bench_serving`, AIPerf and GuideLLM ask: the models, completions and chat of
OpenAI's protocol, streamed and not, and SGLang's ``/generate`` and ``/server_info``.
"""

from __future__ import annotations

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any, ClassVar

# Seconds: of a step, of a step for each request, of a request, of a prompt's token.
STEP_S, SEQUENCE_S, REQUEST_S, PROMPT_S = 8e-3, 2e-4, 25e-3, 2e-5


class Stub(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    model: ClassVar[str] = ""
    running: ClassVar[int] = 0
    lock: ClassVar[Lock] = Lock()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer what is asked about the server."""
        answers = {
            "/v1/models": {"object": "list", "data": [{"id": self.model, "object": "model", "max_model_len": 8192}]},
            "/server_info": {"model_path": self.model, "tp_size": 1, "dp_size": 1, "ep_size": 1, "pp_size": 1,
                             "dtype": "auto", "quantization": None, "kv_cache_dtype": "auto", "version": "0.5.23",
                             "internal_states": [{}]},
            "/model_info": {"model_path": self.model},
        }  # fmt: skip
        path = self.path.replace("/get_", "/")
        self._json(answers.get(path, {"status": "ok"}))

    def do_POST(self) -> None:
        """Generate tokens: words of one token each."""
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path.rstrip("/") in ("/flush_cache", "/start_profile", "/stop_profile"):
            self._json({})
            return
        prompt = len(json.dumps(asked.get("prompt") or asked.get("messages") or asked.get("input_ids") or
                                asked.get("text") or "").split())  # fmt: skip
        sampling = asked.get("sampling_params", {})
        count = (asked.get("max_completion_tokens") or asked.get("max_tokens") or sampling.get("max_new_tokens")
                 or 16)  # fmt: skip
        with self.lock:
            Stub.running += 1
        try:
            self._generate(asked, prompt, count)
        finally:
            with self.lock:
                Stub.running -= 1

    def _generate(self, asked: dict[str, Any], prompt: int, count: int) -> None:
        is_native, is_chat = self.path == "/generate", "chat" in self.path
        if not asked.get("stream"):
            time.sleep(REQUEST_S + count * STEP_S)
            usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
            text = {"message": {"role": "assistant", "content": "a " * count}} if is_chat else {"text": "a " * count}
            self._json({"text": "a " * count, "meta_info": usage} if is_native else
                       {"id": "1", "choices": [{"index": 0, "finish_reason": "length", **text}], "usage": usage})  # fmt: skip
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(REQUEST_S + prompt * PROMPT_S)
        for done in range(1, count + 1):
            if done > 1:
                time.sleep(STEP_S + SEQUENCE_S * self.running)
            self._event(self._chunk(done, prompt, is_native=is_native, is_chat=is_chat, is_last=done == count))
        if not is_native:
            usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
            self._event({"id": "1", "object": "text_completion", "model": self.model, "choices": [], "usage": usage})
        self._write(b"data: [DONE]\n\n")
        self._write(b"")

    def _chunk(self, done: int, prompt: int, *, is_native: bool, is_chat: bool, is_last: bool) -> dict[str, Any]:
        end = "length" if is_last else None
        if is_native:
            return {"text": "a " * done, "meta_info": {"id": "1", "prompt_tokens": prompt, "completion_tokens": done,
                                                       "finish_reason": end, "cached_tokens": 0}}  # fmt: skip
        text: dict[str, Any] = {"delta": {"role": "assistant", "content": "a "}} if is_chat else {"text": "a "}
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        choices = [{"index": 0, "finish_reason": end, **text}]
        return {"id": "1", "object": kind, "created": 0, "model": self.model, "choices": choices}

    def _event(self, value: dict[str, Any]) -> None:
        self._write(f"data: {json.dumps(value)}\n\n".encode())

    def _write(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def _json(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8931)
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B-Instruct")
    asked = parser.parse_args()
    Stub.model = asked.model
    ThreadingHTTPServer(("127.0.0.1", asked.port), Stub).serve_forever()


if __name__ == "__main__":
    main()
