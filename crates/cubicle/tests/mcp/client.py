"""A job through the tools with the MCP SDK for Python: client.py stdio PROGRAM | client.py http URL KEY."""

import asyncio
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


async def job(client, era):
    tools = (await client.list_tools()).tools
    assert tools[0].name == "read_file" and all(tool.output_schema for tool in tools), tools
    # The SDK compares every structured answer with the schema of its tool.
    written = await client.call_tool("write_file", {"path": "job.py", "content": "print(6 * 7)\n"})
    assert written.structured_content["created"] is True, written
    told = []

    async def progress(count, total, message):
        told.append((count, message))

    command = {"command": "python3 job.py; sleep 0.3; echo over; exit 3"}
    ran = await client.call_tool("execute", command, progress_callback=progress)
    assert ran.structured_content["stdout"] == "42\nover\n", ran
    assert ran.structured_content["exit_code"] == 3, ran
    assert "".join(message for _, message in told) == "42\nover\n", told
    refused = await client.call_tool("read_file", {"path": "nothing"})
    assert refused.is_error and "not_found" in refused.content[0].text, refused
    print(f"{era}: done")


async def main():
    for era in ("legacy", "2026-07-28"):
        if sys.argv[1] == "stdio":
            import os

            server = StdioServerParameters(command=sys.argv[2], args=["mcp"], env=dict(os.environ))
            async with Client(server, mode=era) as client:
                await job(client, era)
        else:
            headers = {"Authorization": f"Bearer {sys.argv[3]}"}
            async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
                async with Client(streamable_http_client(sys.argv[2], http_client=http), mode=era) as client:
                    await job(client, era)


asyncio.run(main())
