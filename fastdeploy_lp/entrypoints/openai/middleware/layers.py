"""Middleware layers of the application, in order."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from fastdeploy_lp.entrypoints.openai.bodies_in_flight import BodiesInFlight
from fastdeploy_lp.entrypoints.openai.middleware.authentication import OPEN_PATHS, AuthenticationMiddleware
from fastdeploy_lp.entrypoints.openai.middleware.body_limit import BodyLimitMiddleware
from fastdeploy_lp.entrypoints.openai.middleware.head import HeadMiddleware
from fastdeploy_lp.entrypoints.openai.middleware.http_metrics import HttpMetrics
from fastdeploy_lp.entrypoints.openai.middleware.request_log import RequestLogMiddleware
from fastdeploy_lp.entrypoints.openai.middleware.request_record import RequestsInFlight
from fastdeploy_lp.entrypoints.openai.middleware.root_path import RootPathMiddleware
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.playground.routes import PATH as PLAYGROUND

# Number of bodies of maximum size that may arrive at once, if max_bodies_size is not set.
BODIES = 8


def behind_middleware(app: ASGIApp, args: ServerArgs, in_flight: RequestsInFlight, metrics: HttpMetrics) -> ASGIApp:
    """Returns the application wrapped in the layers that the options enable."""
    bodies = BodiesInFlight(args.max_bodies_size or BODIES * args.max_body_size)
    app = BodyLimitMiddleware(HeadMiddleware(app), args.max_body_size, bodies)
    if args.api_key or args.admin_api_key:
        # Browsers fetch pages without a key; the playground's API requests carry one.
        open_paths = (*OPEN_PATHS, PLAYGROUND) if args.playground else OPEN_PATHS
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
    return RequestLogMiddleware(app, in_flight, metrics, log_prompts=args.log_prompts)
