"""A client of the Model Context Protocol that starts e2b-mcp-server and calls its tool. No model takes part."""

import asyncio
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

# The package on the index has no program, only the function that the program of its sources calls.
SERVER = ["-c", "import e2b_mcp_server; e2b_mcp_server.main()"]
CODE = "import os; print('sandbox', os.environ['E2B_SANDBOX_ID'], 6 * 7)"


async def main():
    parameters = StdioServerParameters(command=sys.executable, args=SERVER, env=dict(os.environ))
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        assert tools == ["run_code"], tools
        result = await session.call_tool("run_code", {"code": CODE})
        print(result.content[0].text)


asyncio.run(main())
