"""Middleware layers of the application, in order."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from fastdeploy_lp.entrypoints.openai.listener.bodies import BodiesInFlight
from fastdeploy_lp.entrypoints.openai.middleware.authentication import OPEN_PATHS, AuthenticationMiddleware
from fastdeploy_lp.entrypoints.openai.middleware.body_limit import BodyLimitMiddleware
from fastdeploy_lp.entrypoints.openai.middleware.client import ClientMiddleware
from fastdeploy_lp.entrypoints.openai.middleware.request_log import HttpMetrics, RequestLogMiddleware
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestsInFlight, RootPathMiddleware
from fastdeploy_lp.entrypoints.openai.policy.policies import Policies
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.openai.uploads.store import UploadStore
from fastdeploy_lp.entrypoints.playground.routes import PATH as PLAYGROUND
from fastdeploy_lp.entrypoints.playground.routes import ROOT


class HeadMiddleware:
    """Handles HEAD as GET, as load balancers and `curl -I` expect; the server sends no body for it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forwards HEAD as GET; outer layers still see HEAD, and the route that answered."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}
        try:
            await self._app(asked, receive, send)
        finally:
            if "route" in asked:
                scope["route"] = asked["route"]


# Number of bodies of maximum size that may arrive at once, if max_bodies_size is not set.
BODIES = 8


def behind_middleware(
    app: ASGIApp,
    args: ServerArgs,
    in_flight: RequestsInFlight,
    metrics: HttpMetrics,
    policies: Policies | None,
    uploads: UploadStore | None,
) -> ASGIApp:
    """Returns the application wrapped in the layers that the options enable."""
    bodies = BodiesInFlight(args.max_bodies_size or BODIES * args.max_body_size)
    app = BodyLimitMiddleware(HeadMiddleware(app), args.max_body_size, bodies)
    if policies is not None or uploads is not None:
        app = ClientMiddleware(app, policies, uploads)
    if args.api_key or args.admin_api_key:
        # Browsers fetch pages without a key; the playground's API requests carry one.
        open_paths = (*OPEN_PATHS, PLAYGROUND, ROOT) if args.playground else OPEN_PATHS
        app = AuthenticationMiddleware(app, args.api_key, open_paths, args.admin_api_key)
    # Outside of authentication: preflights carry no key, and browsers read refusals only with CORS headers.
    if args.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=args.allowed_origins,
            allow_methods=args.allowed_methods,
            allow_headers=args.allowed_headers,
            allow_credentials=args.allow_credentials,
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    if args.root_path:
        app = RootPathMiddleware(app, args.root_path)
    log_requests = args.log_requests or args.log_prompts
    return RequestLogMiddleware(app, in_flight, metrics, log_requests=log_requests, log_prompts=args.log_prompts)
