"""Code, with state.

    POST   /code                          run code in a context; a stream of events
    DELETE /code?id=                      interrupt a context
    POST   /code/context                  make a context
    GET    /code/contexts?language=       list contexts     DELETE: delete all of a language
    GET    /code/contexts/{id}            one context       DELETE: delete the context

A context in Python is a session of /v1, and a context in bash is a bash session. Code without an id
runs in the default context of its language, made at the first use. The list of contexts, and the
deletion of all, have the contexts of this dialect only: neither the sessions of other dialects, nor
the sessions of /session. By its id every session is a context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from aiohttp import web

from execd.api.wire_api import ENGINE, Route, json_reply, note_started, origin_of, query_of
from execd.engine.engine_api import (
    CellOptions,
    Command,
    Conflict,
    InvalidArgument,
    NotFound,
    NotSupported,
    ResourceExhausted,
    Submission,
    code_program,
)
from execd_opensandbox.bash_session_routes import run_in_session
from execd_opensandbox.command_routes import interrupt
from execd_opensandbox.event_reply import send_execution
from execd_opensandbox.requests import expanded, parse_body, program_environment, required_query

if TYPE_CHECKING:
    from execd.engine.engine_api import BashSession, DialectName, Engine, Session

Language = Literal["python", "bash"]
LANGUAGES: tuple[Language, ...] = ("python", "bash")
DEFAULT_CONTEXTS: dict[Language, str] = {
    "python": "opensandbox-python",
    "bash": "opensandbox-bash",
}


class ContextOfCode(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a request with code: by id, or the default context of a language."""

    id: str | None = None
    language: str | None = None


class CodeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Code to run."""

    code: str
    context: ContextOfCode | None = None


class ContextBody(msgspec.Struct, frozen=True, kw_only=True):
    """A context to make."""

    language: str
    cwd: str | None = None


class ContextReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A context."""

    id: str
    language: str
    cwd: str | None = None


DIALECT: DialectName = "opensandbox"
CODE_BODY = msgspec.json.Decoder(CodeBody)
CONTEXT_BODY = msgspec.json.Decoder(ContextBody)


def parse_language(language: str | None) -> Language:
    """Raises InvalidArgument, NotSupported."""
    for known in LANGUAGES:
        if language == known:
            return known
    if not language:
        raise InvalidArgument("language: required: python or bash", field="language")
    raise NotSupported(
        f"language: {language!r} has no interpreter here; the languages are "
        f"{' and '.join(LANGUAGES)}; run another interpreter as a command",
        field="language",
    )


def _find(engine: Engine, context_id: str) -> Session | BashSession:
    """Raises NotFound."""
    found = engine.sessions.find(context_id) or engine.bash_sessions.find(context_id)
    if found is None:
        raise NotFound(f"there is no context {context_id!r}")
    return found


def _reply(engine: Engine, context: Session | BashSession) -> ContextReply:
    is_python = engine.sessions.find(context.id) is context
    return ContextReply(id=context.id, language="python" if is_python else "bash")


async def run(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    asked = await parse_body(request, CODE_BODY)
    if not asked.code:
        raise InvalidArgument("code: empty", field="code")
    context = asked.context or ContextOfCode()
    if context.id is not None:
        found = _find(engine, context.id)
    else:
        found = await _default_context(request, engine, parse_language(context.language))
    bash_session = engine.bash_sessions.find(found.id)
    if bash_session is not None:
        return await run_in_session(request, bash_session, asked.code)
    session = engine.sessions.get(found.id)
    origin = origin_of(request, DIALECT)
    command = Command(program=code_program(asked.code), origin=origin)
    execution = engine.submit(Submission(command, CellOptions(session_id=session.id))).execution
    note_started(request, execution, origin)
    return await send_execution(request, execution, session.id)


async def _default_context(
    request: web.Request, engine: Engine, language: Language
) -> Session | BashSession:
    name = DEFAULT_CONTEXTS[language]
    env = await program_environment(request)
    if language == "python":
        return engine.sessions.find(name) or engine.sessions.declare(
            session_id=name, env=env, dialect=DIALECT
        )
    return await engine.bash_sessions.ensure_context(name)


async def create(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    asked = await parse_body(request, CONTEXT_BODY)
    language = parse_language(asked.language)
    cwd = None if not asked.cwd else expanded(engine, asked.cwd)
    if language == "python":
        env = await program_environment(request)
        context: Session | BashSession = await engine.sessions.create(
            cwd=cwd, env=env, dialect=DIALECT
        )
    else:
        context = await engine.bash_sessions.create(cwd=cwd, is_context=True)
    return json_reply(ContextReply(id=context.id, language=language, cwd=asked.cwd or None))


def _contexts(engine: Engine, language: str | None) -> list[Session | BashSession]:
    """Return the contexts that this dialect has made."""
    found: list[Session | BashSession] = []
    if language in (None, "python"):
        found += engine.sessions.of_dialect(DIALECT)
    if language in (None, "bash"):
        found += [one for one in engine.bash_sessions.list() if one.is_context]
    return found


async def list_contexts(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    language = query_of(request.raw_path).get("language") or None
    return json_reply([_reply(engine, one) for one in _contexts(engine, language)])


async def show(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    return json_reply(_reply(engine, _find(engine, request.match_info["id"])))


async def delete(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    await _delete(engine, _find(engine, request.match_info["id"]))
    return web.Response()


async def delete_contexts(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    for context in _contexts(engine, required_query(request, "language")):
        await _delete(engine, context)
    return web.Response()


async def _delete(engine: Engine, context: Session | BashSession) -> None:
    bash_session = engine.bash_sessions.find(context.id)
    if bash_session is not None:
        await engine.bash_sessions.end(bash_session)
    else:
        session = engine.sessions.find(context.id)
        if session is not None:
            await engine.sessions.end(session)


ROUTES = (
    Route(
        method="POST",
        path="/code",
        handler=run,
        name="opensandbox_run_code",
        summary="Run code in a context",
        body=(CodeBody,),
        replies={200: ("text/event-stream",)},
        errors=(NotFound, NotSupported, ResourceExhausted),
    ),
    Route(
        method="DELETE",
        path="/code",
        handler=interrupt,
        name="opensandbox_interrupt_code",
        summary="Interrupt the code of a context",
        replies={200: ()},
        errors=(NotFound, Conflict),
    ),
    Route(
        method="POST",
        path="/code/context",
        handler=create,
        name="opensandbox_create_context",
        summary="Make a context",
        body=(ContextBody,),
        replies={200: (ContextReply,)},
        errors=(NotSupported, ResourceExhausted),
    ),
    Route(
        method="GET",
        path="/code/contexts",
        handler=list_contexts,
        name="opensandbox_list_contexts",
        summary="List the contexts",
        replies={200: (list[ContextReply],)},
    ),
    Route(
        method="DELETE",
        path="/code/contexts",
        handler=delete_contexts,
        name="opensandbox_delete_contexts",
        summary="Delete the contexts of a language",
        replies={200: ()},
    ),
    Route(
        method="GET",
        path="/code/contexts/{id}",
        handler=show,
        name="opensandbox_get_context",
        summary="One context",
        replies={200: (ContextReply,)},
        errors=(NotFound,),
    ),
    Route(
        method="DELETE",
        path="/code/contexts/{id}",
        handler=delete,
        name="opensandbox_delete_context",
        summary="Delete a context",
        replies={200: ()},
        errors=(NotFound,),
    ),
)
