"""GET /metrics: the metrics of the daemon, for Prometheus and its like."""

from __future__ import annotations

from aiohttp import web

from execd.api.probes.exposition import Format, choose_format, render
from execd.api.probes.families import families
from execd.api.wire.keys import ENGINE
from execd.api.wire.route import Route

PATH = "/metrics"


async def metrics(request: web.Request) -> web.Response:
    """Answer with all series that have a value now."""
    engine = request.app[ENGINE]
    stats = engine.stats()
    text_format = choose_format(request.headers.get("Accept", ""))
    text = render(families(), stats, engine.counters, text_format)
    # As a header: aiohttp would parse a ``content_type`` argument and join its parts again.
    return web.Response(body=text.encode(), headers={"Content-Type": text_format.content_type})


ROUTES = (
    Route(
        method="GET",
        path=PATH,
        handler=metrics,
        name="get_metrics",
        summary="The metrics of the daemon, in the text format of Prometheus or OpenMetrics",
        replies={200: tuple(Format)},
    ),
)
