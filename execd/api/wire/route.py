"""A row of the route table: all that a route accepts and answers.

Each module of handlers has its rows, ``ROUTES``. ``api/routes.py`` puts the rows together. The
application, the open paths and the OpenAPI document are made from the table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import msgspec
    from aiohttp.typedefs import Handler

    from execd.errors import ExecdError

BYTES = "application/octet-stream"
FORM = "multipart/form-data"
"""The file is the part called ``file``."""

PATH = "/{path:(?s:.*)}"
"""The end of a route with the path of a file. "s": a name may contain a newline."""

Content = type | str
"""A type stands for JSON in the form of the type, a string for bytes of this media type."""


class Access(Enum):
    """Which requests a route answers."""

    TOKEN = auto()
    """Requests with the token, where a token is set."""
    OPEN = auto()
    """All requests: the answer is the same for everyone."""
    PROBE = auto()
    """All requests, even when the connections of the daemon are used up. Kubelets cannot carry a
    token."""
    RESET = auto()
    """Requests with the token, also while a reset runs. The handler checks the episode."""
    INIT = auto()
    """All requests, also before the init that the route brings. The handler refuses."""


@dataclass(frozen=True)
class Socket:
    """The messages of a WebSocket."""

    sends: Mapping[str, type]
    """The text messages from execd, by their ``type``."""
    receives: tuple[type, ...]
    """The text messages from the caller: tagged structs."""
    subprotocol: str


# eq=False: a row is equal to itself only, and so can be a key.
@dataclass(frozen=True, kw_only=True, eq=False)
class Route:
    """One row. A GET route answers HEAD too."""

    method: str
    """"*" stands for every method."""
    path: str
    """The pattern of aiohttp's router."""
    handler: Handler
    name: str
    """No other row has the name: the operationId of the OpenAPI document, and so the name of the
    function in a generated client."""
    summary: str
    """One line for the reader of a reference."""
    query: type[msgspec.Struct] | None = None
    """The parameters. None: the route ignores its query."""
    headers: tuple[str, ...] = ()
    """The headers of a request that the route reads."""
    body: tuple[Content, ...] = ()
    is_body_optional: bool = False
    replies: Mapping[int, tuple[Content, ...]]
    """The content by HTTP status. An empty tuple: no body."""
    reply_headers: tuple[str, ...] = ()
    """The headers of these replies that a caller may need."""
    errors: tuple[type[ExecdError], ...] = ()
    """The errors besides the errors that every route has."""
    events: Mapping[str, type] = field(default_factory=dict)
    """The events of a stream by name. Such a route also answers 200 with server-sent events or
    NDJSON."""
    socket: Socket | None = None
    access: Access = Access.TOKEN

    def __post_init__(self) -> None:
        assert self.method in ("GET", "POST", "PUT", "DELETE", "*")
        assert self.name.isidentifier()
        assert self.summary
        assert "\n" not in self.summary
        assert self.replies or self.events or self.socket

    @property
    def needs_token(self) -> bool:
        return self.access in (Access.TOKEN, Access.RESET)

    @property
    def is_in_episode(self) -> bool:
        """Whether a request may name its episode (``X-Execd-Expect-Episode``)."""
        return self.access is not Access.PROBE

    def definition(self) -> web.RouteDef:
        """Return the row in the form of aiohttp's router."""
        if self.method == "GET":
            return web.get(self.path, self.handler)  # allows HEAD
        return web.route(self.method, self.path, self.handler)

    @property
    def is_v1(self) -> bool:
        """Whether the errors of the route have the form of /v1."""
        return self.path.startswith("/v1/")


class RouteTable(list[Route]):
    """The rows of a module, in the order of its handlers."""

    def __init__(self, **shared: Any) -> None:
        """``shared``: fields of all rows whose handlers say nothing else."""
        super().__init__()
        self._shared = shared

    def add(
        self, method: str, path: str | Mapping[str, str], **facts: Any
    ) -> Callable[[Handler], Handler]:
        """Decorate the handler of a row. The row has the handler's name, and the first sentence of
        the handler's docstring for a summary. ``path`` may also be the paths of several rows, by
        their names. ``facts``: the other fields of the rows."""

        def add_rows(handler: Handler) -> Handler:
            summary = " ".join((handler.__doc__ or "").split()).partition(". ")[0].rstrip(".")
            paths = {handler.__name__: path} if isinstance(path, str) else path
            about = {**self._shared, **facts, "handler": handler, "summary": summary}
            for name, each in paths.items():
                self.append(Route(method=method, path=each, name=name, **about))
            return handler

        return add_rows
