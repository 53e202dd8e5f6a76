"""Who may ask, how much, and how many at once: decided before a byte of a question is read."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import HTTPException

from konsil.serve.limits import MB, Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/api/health", "/auth/", "/auth/token")  # no secret in them; /page/... neither
DRAINED = 8 * MB  # of a question that is sent away: many clients first send, then listen
DRAIN_SECONDS = 5.0
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Around the application: hosts, origins, tokens, sizes, times, and room."""

    def __init__(
        self, app: App, limits: Limits, workers: int, token: str = "", loopback: bool = True
    ) -> None:
        """`token`: what a client must know, if it is not empty. `loopback`: nobody else can come,
        so that who asks by another name (DNS rebinding) is a page of somebody else's."""
        self.app, self.limits, self.token, self.loopback = app, limits, token, loopback
        self.room = workers + limits.waiting
        self.questions = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        told = _telling(send)
        refusal = self._refusal(scope)
        if refusal is None and scope["method"] in ("POST", "PUT"):
            await self._question(scope, receive, told)
        elif refusal is None:
            await self.app(scope, receive, told)
        else:
            await _refuse(*refusal, receive, told)

    async def _question(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it in if there is room, and read no more of it than allowed."""
        if self.questions >= self.room:
            await _refuse(503, "too many questions at once; try again in a moment", receive, send)
            return
        self.questions += 1
        try:
            await self.app(scope, self._counting(receive), send)
        finally:
            self.questions -= 1

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        host = headers.get("host", "")
        if self.loopback and not is_loopback(_hostname(host)):
            return 400, "this server answers to localhost alone"
        origin = headers.get("origin")
        if origin not in (None, "null") and urlsplit(origin or "").netloc != host:
            return 403, "pages of other servers may not ask here"
        open_to_all = scope["path"] in OPEN or scope["path"].startswith("/page/")
        if self.token and not open_to_all and not self._knows(headers.get("authorization", "")):
            return 401, "a token is needed: Authorization: Bearer TOKEN"
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            return 400, "a length that is no number"
        if int(length) > self.limits.upload_mb * MB:
            return 413, f"larger than {self.limits.upload_mb} MB"
        return None

    def _knows(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        known = hmac.compare_digest(token.strip().encode(), self.token.encode())
        return scheme.lower() == "bearer" and known

    def _counting(self, receive: Receive) -> Receive:
        """The same messages; HTTPException when they become too many, or come too slowly."""
        end, read = time.monotonic() + self.limits.upload_seconds, 0
        arrived = False

        async def counted() -> Message:
            nonlocal read, arrived
            if arrived:  # what comes now is the end of the connection: it may take its time
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
            except TimeoutError:
                raise HTTPException(408, "the question took too long to arrive") from None
            read += len(message.get("body", b""))
            if read > self.limits.upload_mb * MB:
                raise HTTPException(413, f"larger than {self.limits.upload_mb} MB")
            arrived = not message.get("more_body", False)
            return message

        return counted


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host of this name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _hostname(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _telling(send: Send) -> Send:
    """Send, with the headers that every answer has."""

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *own]}
        await send(message)

    return told


async def _refuse(status: int, detail: str, receive: Receive, send: Send) -> None:
    """Say no, after a little of what is being sent was heard."""
    if status != 413:
        await _drain(receive)
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += {401: [(b"www-authenticate", b"Bearer")], 503: [(b"retry-after", b"2")]}.get(
        status, []
    )
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _drain(receive: Receive) -> None:
    end, read = time.monotonic() + DRAIN_SECONDS, 0
    while read < DRAINED:
        try:
            message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
        except TimeoutError:
            return
        read += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
