"""Answers the kubelet and Prometheus. Served by the event loop itself: when that stalls, nothing answers."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest


async def serve(port: int, ready: Callable[[], bool], registry: CollectorRegistry = REGISTRY) -> web.AppRunner:
    """Serve `/healthz`, `/readyz` and `/metrics`; the returned runner is cleaned up by the caller.

    `/healthz` answers while the event loop turns. `/readyz` answers when the process can lead as soon as the Lease is
    its own: a standby is ready, one whose audit store is not proved is not.
    """

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if ready() else web.Response(status=503, text="not ready\n")

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
