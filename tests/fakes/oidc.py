"""An OpenID provider that lets one person in, over real HTTP on this machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from django.test import Client

from greenserve.oidc import OidcProvider
from telemetry.providers.secrets import Secret

CLIENT_ID, CLIENT_SECRET = "greenserve", "not-a-real-secret-but-long-enough-for-hs256"


class FakeOidc:
    """`groups` may be changed between sign-ins. Used as a context: stopped at its end."""

    def __init__(self, subject: str, username: str, groups: Sequence[str]) -> None:
        self.subject, self.username, self.groups = subject, username, list(groups)
        self.verifiers: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                self._answer(fake.configuration() if path.endswith("openid-configuration") else fake.claims())

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                fake.verifiers += form.get("code_verifier", [])
                self._answer({"access_token": "a", "token_type": "Bearer", "id_token": fake.id_token()})

            def _answer(self, value: dict[str, Any]) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> FakeOidc:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    def settings(self, roles: Mapping[str, str]) -> OidcProvider:
        return OidcProvider(self.url, CLIENT_ID, Secret(CLIENT_SECRET), "Fake SSO", "groups", dict(roles))

    def allauth(self) -> dict[str, Any]:
        app = {"provider_id": "sso", "name": "Fake SSO", "client_id": CLIENT_ID, "secret": CLIENT_SECRET}
        return {"openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [app | {"settings": {"server_url": self.url}}]}}

    def follow(self, client: Client, start: str) -> Any:
        """What a browser does: to the provider, and back with a code."""
        away = urlsplit(client.get(start).headers["Location"])
        asked = parse_qs(away.query)
        assert f"http://{away.netloc}" == self.url
        back = urlsplit(asked["redirect_uri"][0])
        return client.get(back.path, {"code": "c", "state": asked["state"][0]})

    def configuration(self) -> dict[str, Any]:
        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "userinfo_endpoint": "userinfo"}
        return {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"} | {k: f"{self.url}/{v}" for k, v in names.items()}

    def claims(self) -> dict[str, Any]:
        return {"sub": self.subject, "preferred_username": self.username, "groups": self.groups}

    def id_token(self) -> str:
        times = {"iat": int(time.time()), "exp": int(time.time()) + 60}
        claims = self.claims() | times | {"iss": self.url, "aud": CLIENT_ID}
        return jwt.encode(claims, CLIENT_SECRET, algorithm="HS256")
