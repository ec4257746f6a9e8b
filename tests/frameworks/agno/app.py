"""An agent of Agno with its E2B toolkit."""

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.tools.e2b import E2BTools

tools = E2BTools()
agent = Agent(model=OpenAIChat(id="gpt-4o"), tools=[tools])
try:
    print(agent.run("Which sandbox is this, and what is 6 times 7?").content)
finally:
    tools.shutdown_sandbox()
