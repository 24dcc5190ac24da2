"""Pass on every connection to a port of this host: `gate.py PORT ADDRESS`.

The same port of the other address is dialled; each direction ends when its sender ends it.
"""

from __future__ import annotations

import asyncio
import sys

BLOCK = 65536


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while block := await reader.read(BLOCK):
        writer.write(block)
        await writer.drain()
    writer.write_eof()


async def serve(port: int, address: str) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(address, port)
            await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))
            there[1].close()
        except OSError:
            writer.transport.abort()  # As good as a reset: nobody is there, or one went away.
        else:
            writer.close()

    server = await asyncio.start_server(connected, None, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
