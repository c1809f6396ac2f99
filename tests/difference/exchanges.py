"""The requests that both servers get, and a reply in a line of text.

Both servers begin with an empty base dir and get the same requests in the same order; commands
prepare files for the requests that follow. The requests are those of the conformance tests of the
five routes, as far as a request and the reply can show the facts. Left out: requests at once,
connections that break, times, races, and outputs over 10 MB, which the upstream server would hold
in memory.

The line leaves out what no client can rely on: times, the name of the base dir, and the fields that
execd adds (both SDKs ignore additional fields).
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import httpx

SHOWN_CHARACTERS = 160
"""Of an answer in docs/reference/upstream.md."""
ADDED = {"duration_seconds", "execution_id"}
TIMES = {"mod_time"}
HEADERS = ("content-type", "location", "content-range", "content-disposition")


@dataclass(frozen=True)
class Exchange:
    name: str
    method: str
    path: str
    """Sent as written here, with BASE for the base dir."""
    more: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``httpx.Client.request``."""
    etag_header: str | None = None
    """A header that repeats the ETag of the last reply with an ETag."""


def execute(name: str, body: object) -> Exchange:
    return Exchange(name, "POST", "/execute", {"json": body})


def command(text: str, name: str | None = None) -> Exchange:
    return execute(name or f"the command {text!r}", {"command": text})


def raw_execute(
    name: str, content: bytes, content_type: str = "application/json", **headers: str
) -> Exchange:
    headers = {"Content-Type": content_type, **headers}
    return Exchange(name, "POST", "/execute", {"content": content, "headers": headers})


def upload(name: str, filename: str, content: bytes = b"content") -> Exchange:
    return Exchange(name, "POST", "/upload", {"files": {"file": (filename, content)}})


def get(name: str, path: str, method: str = "GET", **headers: str) -> Exchange:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return Exchange(name, method, path, {"headers": named})


BOUNDARY = "b0undary"
END = f"\r\n--{BOUNDARY}--\r\n"


def part(disposition: str, content: str = "", more: str = "") -> str:
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {disposition}\r\n{more}\r\n"
    return head + content


def form(name: str, body: str) -> Exchange:
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return Exchange(name, "POST", "/upload", {"content": body.encode(), "headers": headers})


def python(program: str) -> str:
    return f"python3 -c {shlex.quote(program)}"


EXECUTE = [
    execute("a command", {"command": "echo out; echo err >&2; exit 3"}),
    execute("a pipe and a variable", {"command": "x=5; echo $x | tr 5 6"}),
    execute("a program that does not exist", {"command": "no-such-program"}),
    execute("a shell that a signal ends", {"command": "kill -9 $$"}),
    execute("a child that a signal ends", {"command": "sh -c 'kill -9 $$'; exit $?"}),
    execute("bytes that are no UTF-8", {"command": r"printf 'a\377b'"}),
    execute("carriage returns", {"command": r"printf 'a\r\nb\r'"}),
    execute("a syntax error", {"command": "if"}),
    execute("the working directory", {"command": "pwd"}),
    execute("an empty command", {"command": ""}),
    execute("a command with NUL", {"command": "echo a\0b"}),
    execute("a timeout", {"command": "echo early; sleep 30", "timeout_seconds": 0.3}),
    execute(
        "a timeout with words on stderr",
        {"command": "printf late >&2; sleep 30", "timeout_seconds": 0.3},
    ),
    execute(
        "a background child that holds the pipe",
        {"command": "sleep 3 & echo done", "timeout_seconds": 2},
    ),
    execute("unknown fields", {"command": "echo hi", "env": {"A": "1"}, "cwd": "/", "other": 1}),
    execute("no command", {}),
    execute("a command by another name", {"cmd": "true"}),
    execute("a timeout without a command", {"timeout_seconds": 5}),
    *(
        execute(f"the command {json.dumps(value)}", {"command": value})
        for value in (None, 5, 1.5, True, ["ls"], {"a": 1})
    ),
    *(
        raw_execute(
            f"the timeout {json.dumps(value)}",
            json.dumps({"command": "true", "timeout_seconds": value}).encode(),
        )
        for value in (
            *(0, -1, -0.5, "soon", [], {}, 1e999, "nan", "inf"),
            *(None, 5, 0.5, 2.25, 10**6, "5"),
        )
    ),
    *(
        raw_execute(f"the body {content.decode('ascii', 'backslashreplace')}", content)
        for content in (
            *(b"{", b"{bad", b"", b"{'command': 'ls'}", b'{"command": "ls"', b"\xff\xfe"),
            *(b"[]", b'"ls"', b"3", b"null"),
        )
    ),
    Exchange("a body without a type", "POST", "/execute", {"content": b'{"command": "true"}'}),
    raw_execute("a body of plain text", b"command=ls", "text/plain"),
    raw_execute("a body of a form", b"command=ls", "application/x-www-form-urlencoded"),
    raw_execute("a type with a charset", b'{"command": "true"}', "application/json; charset=utf-8"),
    Exchange(
        "a body in chunks",
        "POST",
        "/execute",
        {
            "content": [b'{"comm', b'and": "echo', b' hi"}'],
            "headers": {"Content-Type": "application/json"},
        },
    ),
    raw_execute("a lone surrogate", b'{"command": "echo \\ud800"}'),
    raw_execute("a body of 17 MiB", b" " * (17 << 20)),
    *(
        raw_execute(
            f"a request id, the {word} time",
            b'{"command": "echo ran >> runs; cat runs"}',
            **{"X-Request-ID": "feedfacecafebeef"},
        )
        for word in ("first", "second")
    ),
    Exchange("a slash behind /execute", "POST", "/execute/", {"json": {"command": "true"}}),
    Exchange("/execute by GET", "GET", "/execute"),
]

COMMANDS = [
    *map(
        command,
        (
            "true && echo yes",
            "false || echo no",
            "echo one; echo two",
            "echo one\necho two",
            "FOO=1 sh -c 'echo $FOO'",
            "cd /usr && pwd",
            "X='a  b'; echo \"$X\"",
            "echo $((6 * 7))",
            "for i in 1 2 3; do printf %s $i; done",
            "cat <<END\nhere\nEND",
            "echo shown # not shown",
            "   ",
            ":",
            "echo 'echo hi' > script; chmod 644 script; ./script",
            "echo 'unfinished",
            "echo out; echo err >&2; echo out2; echo err2 >&2",
            "printf %s 'naïve Ελλάδα 日本語 🐍 \u202e\u0301 \u2028'",
            "printf %s 'naïve 日本語 🐍' >&2",
            r"printf 'one\rtwo'",
            r"printf '\r'",
            r"printf 'a\000b\000'; printf 'a\000b\000' >&2",
            "printf 'no newline'",
            r"printf 'tab\there\033[31mred\033[0m'",
            r"printf '\303'",
            r"printf '\303\050'",
            r"printf '\357\273\277bom'",
            r"printf '\360\237'; sleep 0.2; printf '\220\215'",
            "exec >&- 2>&-; sleep 0.1; exit 5",
            "cat; echo end",
            "readlink /proc/self/fd/0",
            "cd /tmp; export LEFT=behind",
            "echo ${LEFT-nothing}",
            "python -c 'print(6 * 7)'",
            "echo 'import sys; print(sys.argv[1:]); 1/0' > a.py; python3 a.py 'a b' c",
        ),
    ),
    *(
        command(f"exit {code}")
        for code in (0, 1, 2, 42, 100, 123, 124, 125, 126, 127, 128, 129, 137, 200, 254, 255)
    ),
    *(
        command(f"sh -c 'kill -{name} $$'; exit $?", f"a child that SIG{name} ends")
        for name in ("TERM", "SEGV", "INT", "HUP")
    ),
    command("# " + "x" * 200_000 + "\necho ran; exit 4", "a script of 200 kB"),
    command("cat <<'END' | wc -c\n" + "w" * 2_000_000 + "\nEND\n", "a script of 2 MB"),
    command("yes 0123456789abcde | head -c 1000000", "an output of 1 MB"),
    command("seq 1 700000", "an output of 4.6 MB"),
    command("yes 0123456789abcde | head -c 3000000 >&2; echo whole", "a stderr of 3 MB"),
    command(python("print('日本語🐍' * 300_000)"), "an output of 4 MB in four bytes a character"),
    command(python("import os\nfor n in range(20000): os.write(1, b'%d\\n' % n)"), "many writes"),
]

UPLOADS = [
    upload("an upload", "file.txt"),
    upload("an upload into a new directory", "new/sub/file.txt"),
    upload("an upload to an absolute path", "/abs.txt"),
    upload("an upload with many slashes", "///many.txt"),
    upload("an upload onto a directory", "new"),
    upload("an upload onto a directory with a slash", "new/"),
    upload("an upload onto the base dir", "."),
    upload("an upload onto a directory by dots", "new/sub/.."),
    upload("an upload below a file", "file.txt/below"),
    upload("an upload without a name", ""),
    upload("an upload to a name that is too long", "n" * 300),
    upload("an upload to a path that is too long", "/".join(["n" * 200] * 30)),
    upload("an upload out of the base dir", "../out.txt"),
    upload("an upload out of the base dir and a directory", "a/../../out.txt"),
    upload("an upload out of the base dir with a slash", "/../out.txt"),
    upload("an empty upload", "empty", b""),
    upload("an upload over an old file", "empty", b"new"),
    command(
        "cat empty; mkdir links; ln -s ../new links/here; ln -s /etc links/out",
        "the file that was uploaded over, and links",
    ),
    upload("an upload by a link", "links/here/linked.txt"),
    upload("an upload by a link out of the base dir", "links/out/execd-difference"),
    *(
        upload(f"an upload to {name!r}", f"names/{name}")
        for name in (
            *("with space.txt", "naïve 日本.txt", "it's", "a;b", "a=b&c", "100%.txt", "100%25.txt"),
            *("-n", ".hidden", "a\\b", "#?", 'quo"te'),
        )
    ),
    form("a quote as %22", part('name="file"; filename="names/say %22hi%22"', "x") + END),
    form("a quote with a backslash", part('name="file"; filename="names/say \\"ho\\""', "x") + END),
    form(
        "a name of RFC 5987",
        part("name=\"file\"; filename*=UTF-8''names/na%C3%AFve%20%22q%22.txt", "x") + END,
    ),
    command("ls -A names", "the names"),
    form(
        "an upload between other fields",
        part('name="a"', "1\r\n")
        + part('name="b"; filename="decoy"', "2\r\n")
        + part('name="file"; filename="between"', "right", "Content-Type: text/plain\r\n")
        + "\r\n"
        + part('name="c"', "3")
        + END,
    ),
    command("cat between; ls decoy", "the upload between other fields, read"),
    form("an upload with odd bytes", part('name="file"; filename="odd"', "\0\r\n--b0undar") + END),
    command("od -c odd", "the odd bytes"),
    Exchange("an upload of a plain field", "POST", "/upload", {"data": {"other": "x"}}),
    Exchange("an upload without the part", "POST", "/upload", {"files": {"other": ("a", b"")}}),
    Exchange("an upload that is no form", "POST", "/upload", {"content": b"x"}),
    Exchange("an upload without a body", "POST", "/upload"),
    form("an empty form", ""),
    form("a form that is nonsense", "nonsense"),
    form("a form that is nothing but the end", END),
    form("a form that is cut", part('name="file"; filename="never"', "cut")),
    command("ls never", "the form that was cut, read"),
]

DATA = python("open('data.bin', 'wb').write(bytes(range(256)) * 4)")
DOWNLOADS = [
    command(
        f"{DATA}; : > nothing; cd links; ln -s loop loop; ln -s ../data.bin link; "
        "ln -s ${PWD%/links}/data.bin absolute; mkfifo fifo; ln -s nowhere dangling; "
        "ln -s /etc/passwd passwd; printf 1 > \"$(printf 'a\\r\\nX-Evil: 1')\"",
        "files to download",
    ),
    get("a download", "/download/file.txt"),
    get("a download of bytes", "/download/data.bin"),
    get("a download by HEAD", "/download/file.txt", "HEAD"),
    get("a download by HEAD that is not there", "/download/none", "HEAD"),
    get("a download of an empty file", "/download/nothing"),
    get("a range of an empty file", "/download/nothing", Range="bytes=0-"),
    *(
        get(f"the range {wanted}", "/download/data.bin", Range=wanted)
        for wanted in (
            *("bytes=0-0", "bytes=0-9", "bytes=1000-", "bytes=-24", "bytes=5-99999"),
            *("bytes=-5000", "bytes=1024-", "bytes=5000-6000", "bytes=-0", "bytes=abc"),
            *("bytes=9-2", "lines=1-2", "bytes", "bytes=", "bytes=1-2-3", "bytes=0-1,10-11"),
        )
    ),
    get("any ETag", "/download/data.bin", If_None_Match="*"),
    get("another ETag", "/download/data.bin", If_None_Match='"other"'),
    Exchange("the ETag", "GET", "/download/data.bin", etag_header="If-None-Match"),
    Exchange(
        "a range of the unchanged file",
        "GET",
        "/download/data.bin",
        {"headers": {"Range": "bytes=0-9"}},
        "If-Range",
    ),
    get("a range of a changed file", "/download/data.bin", Range="bytes=0-9", If_Range='"stale"'),
    get("an escaped slash", "/download/new%2Fsub%2Ffile.txt"),
    get("a download that is not there", "/download/none"),
    get("a download below a missing directory", "/download/none/none"),
    get("a download below a file", "/download/file.txt/below"),
    get("a download of a directory", "/download/new"),
    get("a download of a directory with a slash", "/download/new/"),
    get("a download of the base dir", "/download/."),
    get("a download without a path", "/download"),
    get("a name that is no ASCII", f"/download/names/{quote('naïve 日本.txt')}"),
    get("a name with quotes", "/download/names/quo%22te"),
    get("a name with a header", "/download/links/a%0D%0AX-Evil%3A%201"),
    *(
        get(f"a download of {what}", f"/download/links/{name}")
        for what, name in (
            ("a fifo", "fifo"),
            ("a dangling link", "dangling"),
            ("a link", "link"),
            ("an absolute link", "absolute"),
            ("a link in a circle", "loop"),
            ("a link out of the base dir", "passwd"),
        )
    ),
]

LISTINGS = [
    command(
        "mkdir list list/sub list/empty; cd list; printf 123 > file; touch z b9 ä b10 a B .hidden; "
        "ln -s file f; ln -s sub s",
        "files to list",
    ),
    get("a listing", "/list/list"),
    get("a listing of an empty directory", "/list/list/empty"),
    get("a listing by HEAD", "/list/list", "HEAD"),
    get("a listing of the base dir", "/list/."),
    get("a listing without a path", "/list"),
    get("a listing with a slash alone", "/list/"),
    get("a listing of a file", "/list/file.txt"),
    get("a listing below a file", "/list/file.txt/below"),
    get("a listing that is not there", "/list/none"),
    get("a listing that is not there, by HEAD", "/list/none", "HEAD"),
    get("a listing out of the base dir", "/list/..%2F"),
    command(
        "mkdir dangling-list; cd dangling-list; touch a; ln -s none dangling", "a dangling link"
    ),
    get("a listing with a dangling link", "/list/dangling-list"),
    command("mkdir loop-list; cd loop-list; touch a; ln -s loop loop", "a link in a circle"),
    get("a listing with a link in a circle", "/list/loop-list"),
    command(
        "mkdir out-list; cd out-list; ln -s /etc/passwd out; ln -s /etc dir; mkfifo fifo",
        "links out of the base dir",
    ),
    get("a listing with links out of the base dir", "/list/out-list"),
    command(
        "mkdir bytes; "
        + python(
            "import os\n"
            "for name in (b'new\\nline', b'quo\"te', b'back\\\\slash', b'tab\\t', b'del\\x7f'):\n"
            "    open(os.path.join(b'bytes', name), 'w').close()"
        ),
        "names of odd bytes",
    ),
    get("a listing of odd bytes", "/list/bytes"),
    command(python("open(b'bytes/\\xff\\xfe', 'w').close()"), "a name that is no UTF-8"),
    get("a listing with a name that is no UTF-8", "/list/bytes"),
    command("mkdir many; cd many; seq 10000 | xargs touch", "ten thousand names"),
    get("a listing of ten thousand names", "/list/many"),
    get("a name that exists", "/exists/file.txt"),
    get("a name that exists, by HEAD", "/exists/file.txt", "HEAD"),
    get("a directory that exists", "/exists/new"),
    get("a directory that exists, with a slash", "/exists/new/"),
    get("a name that does not exist", "/exists/none"),
    get("a name below a file", "/exists/file.txt/x"),
    get("a dangling link that exists", "/exists/links/dangling"),
    get("an existence of the base dir", "/exists/."),
    get("an existence with a slash alone", "/exists/"),
    get("an existence without a path", "/exists"),
]

PATHS = [
    *(
        get(f"/{route}/{path}", f"/{route}/{path}")
        for path in (
            *("list%2Ffile", "list%2ffile", "/list/file", "//list/file", "%2Flist/file"),
            *("list//file", "./list/./file", "list/none/../file", "list/sub/../file"),
            *("%2E%2Flist/file", "%6Cist/file"),
            *("..", "../", "../../etc/passwd", "%2E%2E/etc/passwd", "%2e%2e%2fetc%2fpasswd"),
            *(
                "..%2F..%2Fetc",
                "list/../../etc",
                "/../etc/passwd",
                "%2F..%2Fetc",
                "links/out/passwd",
            ),
            *("links/out", "a%00b", "../base-sibling", "../base/list/file", "BASE/list/file"),
            *("/etc/passwd", "%FF%FE", "%C3%28", "%ED%A0%80", "%", "%2", "%zz", "a%"),
        )
        for route in ("download", "exists")
    ),
    get("a listing out of the base dir by a link", "/list/links/out"),
    get("a listing of NUL", "/list/a%00b"),
    get("a listing of no UTF-8", "/list/%FF%FE"),
    *(
        get(f"{route} with {what} that is too long", f"/{route}/{path}")
        for what, path in (("a name", "n" * 300), ("a path", "/".join(["n" * 200] * 25)))
        for route in ("download", "list", "exists")
    ),
    *(
        get(f"{route} of the name {name!r}", f"/{route}/names/{quote(name, safe='')}")
        for name in ("100%.txt", "100%25.txt", "a;b", "#?", "a\\b", "it's")
        for route in ("download", "exists")
    ),
    upload("an upload to an absolute path in the base dir", "BASE/inside.txt"),
    get("the upload to an absolute path in the base dir", "/download/inside.txt"),
    command(
        "mkdir -p .$PWD/list; printf nested > .$PWD/list/file; printf only > .$PWD/list/only",
        "a base dir within the base dir",
    ),
    get("a download that both readings of an absolute path find", "/download/BASE/list/file"),
    get("a download that the old reading alone finds", "/download/BASE/list/only"),
]

EXCHANGES = [
    get("probe", "/"),
    get("probe by HEAD", "/", "HEAD"),
    *EXECUTE,
    *COMMANDS,
    *UPLOADS,
    *DOWNLOADS,
    *LISTINGS,
    *PATHS,
    get("an unknown route", "/no/such/route"),
    get("a base URL that ends in a slash", "//exists/none"),
]


def line(reply: httpx.Response, base_dir: str, only: httpx.Response | None = None) -> str:
    """The reply as text. ``only``: the fields of this reply's JSON are kept, and no others."""
    own_address = str(reply.request.url.copy_with(path="/", query=None))
    parts = [
        str(reply.status_code),
        *(
            f"{name}: {reply.headers[name].replace(own_address, '/')}"
            for name in HEADERS
            if name in reply.headers
        ),
    ]
    if _is_json(reply):
        body = _stable(reply.json())
        if only is not None and isinstance(body, dict):
            known = only.json() if _is_json(only) else {}
            body = {name: body[name] for name in body if name in known} or {
                name: body[name] for name in body if name not in ADDED
            }
        text = json.dumps(body, sort_keys=True)
    else:
        text = reply.content.decode("latin-1").encode("unicode_escape").decode()
    text = " ".join(filter(None, [*parts, text])).replace(base_dir, "BASE")
    if boundary := re.search(r"boundary=(\w+)", reply.headers.get("content-type", "")):
        text = text.replace(boundary[1], "RANDOM")
    return text


def _is_json(reply: httpx.Response) -> bool:
    return reply.headers.get("content-type") == "application/json" and bool(reply.content)


def shown(text: str) -> str:
    """The line, or the beginning of a long line, on the page."""
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}… ({len(text)} characters)"
    return f"`{text}`"


def _stable(body: Any) -> Any:
    if isinstance(body, list):
        return sorted((_stable(item) for item in body), key=str)
    if isinstance(body, dict):
        # The size of a directory is a matter of the file system.
        volatile = {"size"} if body.get("type") == "directory" else set()
        return {
            name: type(value).__name__ if name in TIMES else _stable(value)
            for name, value in body.items()
            if name not in volatile
        }
    return body
