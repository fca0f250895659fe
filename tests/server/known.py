"""A server whose every answer takes a known time, in a process of its own: what a load generator measures can be held against it.

python known.py DELAY_S: prints its port, then answers each POST after DELAY_S with 200 and a
Server-Timing header, as our handlers do.
"""

from __future__ import annotations

import asyncio
import sys
import time

from aiohttp import web


async def exactly(delay_s: float) -> None:
    """asyncio wakes to the millisecond; the last few are spun."""
    due_s = time.perf_counter() + delay_s
    await asyncio.sleep(max(0.0, delay_s - 0.003))
    while time.perf_counter() < due_s:
        await asyncio.sleep(0)


def make(delay_s: float) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if request.path.endswith("/refuses"):
            response = web.json_response({"code": 400}, status=400)
            response.force_close()
            return response
        await exactly(delay_s)
        timing = f'inference;dur={delay_s * 1e3:.3f}, batch;desc="1"'
        return web.json_response({"ok": True}, headers={"Server-Timing": timing})

    application = web.Application()
    application.router.add_post("/{tail:.*}", answer)
    return application


async def main(delay_s: float) -> None:
    runner = web.AppRunner(make(delay_s), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
