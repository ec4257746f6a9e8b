"""An agent of Google's ADK whose environment is an E2B sandbox."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.integrations.e2b import E2BEnvironment
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset


async def main():
    toolset = EnvironmentToolset(environment=E2BEnvironment())
    agent = LlmAgent(name="worker", model="gemini-2.5-flash", tools=[toolset])
    async with InMemoryRunner(agent=agent) as runner:
        events = await runner.run_debug("Which sandbox is this, and what is 6 times 7?", quiet=True)
    print("".join(part.text or "" for event in events for part in event.content.parts))


asyncio.run(main())
