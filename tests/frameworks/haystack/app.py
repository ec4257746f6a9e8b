"""An agent of Haystack with the toolset of e2b-haystack."""

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack_integrations.tools.e2b import E2BToolset

toolset = E2BToolset()
agent = Agent(chat_generator=OpenAIChatGenerator(model="gpt-4o"), tools=toolset)
try:
    question = ChatMessage.from_user("Which sandbox is this, and what is 6 times 7?")
    print(agent.run(messages=[question])["last_message"].text)
finally:
    toolset.sandbox.close()
