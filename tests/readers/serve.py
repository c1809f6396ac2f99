"""An HTTP server of random event streams: GET /NUMBER with an Accept header.

    python -m tests.readers.serve SEED

Prints the port, and ends when standard input does. Each chunk of a reply ends anywhere, and goes to
the kernel by itself.
"""

from __future__ import annotations

import asyncio
import random
import sys

from tests.readers.generated import NDJSON, SSE, encode, encoder_for, in_pieces, random_events


async def answer(seed: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            request = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            number = int(request.split()[1].removeprefix("/"))
            numbers = random.Random(f"{seed} {number} pieces")
            content_type = SSE if SSE in request else NDJSON
            data = encode(random_events(seed, number), content_type, numbers)
            charset = encoder_for(content_type).charset
            parameter = f"; charset={charset}" if charset else ""
            head = f"Content-Type: {content_type}{parameter}\r\nTransfer-Encoding: chunked"
            writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
            for piece in in_pieces(data, numbers):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has closed the connection
    finally:
        writer.close()


async def main() -> None:
    seed = int(sys.argv[1])
    server = await asyncio.start_server(
        lambda reader, writer: answer(seed, reader, writer), "127.0.0.1", 0
    )
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
