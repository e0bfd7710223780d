"""Serving the page: who may see it, which pictures there are, and that nothing is fetched from anywhere else."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from .base import ReviewError
from .page import build_page
from .screens import Desk
from .store import Store

SHORTEST_TOKEN = 12
COOKIE = "hf_robust_review"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
NOT_OURS = ("/gradio_api/upload", "/gradio_api/proxy=", "/gradio_api/stream", "/gradio_api/file", "/monitoring")
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'self' https://huggingface.co"
)
_SAFE = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_ASK = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Access token</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body {{ font: 1.1rem/1.5 system-ui, sans-serif; max-width: 26rem; margin: 15vh auto; padding: 0 1rem;
  color-scheme: light dark; }} input, button {{ font: inherit; padding: .5rem .75rem; width: 100%; margin: .25rem 0;
  box-sizing: border-box; }}</style>
<form method="get"><label for="token">{why}</label>
<input id="token" name="token" type="password" autocomplete="off" required autofocus><button>Open</button></form></html>
"""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """An ASGI app that lets requests through to another one: with the token, or without one from this machine only.

    The token comes once in the address (`?token=…`), then in a cookie; it is compared in constant time. Without a token
    the Host header must name this machine, so that no page of another site can reach it through a name of its own
    (`hosts` None: any name, for a place that is meant to be open).
    """

    def __init__(self, app: App, token: str | None, hosts: tuple[str, ...] | None = LOOPBACK) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, or hands it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # the page opens no web sockets
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if not self._is_ours(scope, headers):
            await _send(send, 403, "this address is not served here")
        elif not self.token or _equal(_cookie(headers), self.token):
            await self.app(scope, receive, _with_headers(send))
        else:
            await self._ask(scope, headers, send)

    def _is_ours(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        known = bool(self.token) or self.hosts is None or name.lower() in self.hosts
        own = scope["method"] in ("GET", "HEAD") or headers.get("sec-fetch-site", "same-origin") == "same-origin"
        return known and own and not scope["path"].startswith(NOT_OURS)

    async def _ask(self, scope: Scope, headers: Mapping[str, str], send: Send) -> None:
        """The cookie and the address without the token for who has it, else a form that asks for it and no more."""
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        offered = query.pop("token", [None])[0]
        if scope["method"] != "GET" or scope["path"] != "/" or not _equal(offered, self.token or ""):
            why = "Access token" if offered is None else "That is not the access token. Access token"
            await _send(send, 401, _ASK.format(why=escape(why)), b"text/html; charset=utf-8")
            return
        far = headers.get("x-forwarded-proto", scope.get("scheme", "http")).split(",")[0].strip() == "https"
        rules = "SameSite=None; Secure; Partitioned" if far else "SameSite=Lax"  # a Space is shown in a frame
        cookie = f"{COOKIE}={_quoted(self.token or '')}; Path=/; HttpOnly; Max-Age=2592000; {rules}"
        place = "./" + (f"?{urlencode(query, doseq=True)}" if query else "")
        await _send(send, 303, "", extra=((b"location", place.encode()), (b"set-cookie", cookie.encode("latin-1"))))


def _equal(offered: str | None, token: str) -> bool:
    return offered is not None and hmac.compare_digest(offered.encode(), token.encode())


def _quoted(token: str) -> str:
    return token.encode().hex()  # any token fits into a cookie


def _cookie(headers: Mapping[str, str]) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        return None if found is None else bytes.fromhex(found.value).decode()
    except (CookieError, ValueError):
        return None


async def _send(
    send: Send, status: int, text: str, kind: bytes = b"text/plain; charset=utf-8",
    extra: tuple[tuple[bytes, bytes], ...] = (),
) -> None:  # fmt: skip
    headers = [(b"content-type", kind), (b"cache-control", b"no-store"), *_SAFE, *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


def _with_headers(send: Send) -> Send:
    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_SAFE]}
        await send(message)

    return sent


def build_app(desk: Desk, *, token: str | None, hosts: tuple[str, ...] | None = LOOPBACK) -> Gate:
    """The page, its calls and the review's pictures behind a gate; ImportError names what to install."""
    blocks = build_page(desk)
    import gradio as gr
    from fastapi import FastAPI, Response
    from fastapi.responses import FileResponse

    review = desk.store.review
    pictures = {item.picture for item in review.items}

    def picture(name: str) -> Response:
        if name not in pictures:
            return Response(status_code=404)
        return FileResponse(review.picture(name), headers={"cache-control": "private, max-age=86400, immutable"})

    app = FastAPI(openapi_url=None)
    app.add_api_route("/images/{name}", picture, response_model=None)
    return Gate(gr.mount_gradio_app(app, blocks, path="/"), token, hosts)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def access_token(host: str, token: str | None) -> str | None:
    """The token to ask for; "auto" makes one. ReviewError without one off loopback, or for one that can be guessed."""
    if token == "auto":
        return secrets.token_urlsafe(24)
    if token is None and not is_loopback(host):
        raise ReviewError(f"expected an access token for host {host}, which others can reach, got none: --token auto")
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ReviewError(f"expected a token of {SHORTEST_TOKEN} characters or more, got {len(token)}: --token auto")
    return token


def serve(
    folder: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 7861,
    token: str | None = None,
    idle_minutes: float = 60,
    say: Callable[[str], None],
) -> None:
    """Serves the review in a folder until it is stopped.

    token  what the page asks for; "auto" makes one and says it. Needed off loopback.
    port   0 takes a free one.
    say    is told the address once the page can be opened.
    ReviewError for a folder that is no review, a missing token, a port in use.
    """
    token = access_token(host, token)
    app = build_app(Desk(Store(folder, idle_minutes=idle_minutes)), token=token, hosts=(*LOOPBACK, host))
    with listen(host, port) as listening:
        query = "" if token is None else f"?{urlencode({'token': token})}"
        name = f"[{host}]" if ":" in host else host
        say(f"http://{name}:{listening.getsockname()[1]}/{query}")
        run(app, listening)


def run(app: App, listening: socket.socket) -> None:
    """Serves an app on a bound socket until it is stopped; nothing is logged below warnings, tokens never."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; ReviewError where the address is in use or not of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # who connects before the server runs waits a moment
    except OSError as error:
        listening.close()
        raise ReviewError(
            f"expected to listen on {host}:{port}, got {error.strerror}: choose another with --port"
        ) from error
    return listening
