"""An agent of CAMEL with its code execution toolkit. CAMEL pins the first major version of E2B's SDK."""

from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.toolkits import CodeExecutionToolkit
from camel.types import ModelPlatformType, ModelType
from camel.utils import BaseTokenCounter


class Words(BaseTokenCounter):
    """CAMEL's own counter downloads a vocabulary at each first start."""

    def count_tokens_from_messages(self, messages):
        return sum(len(self.encode(str(message))) for message in messages)

    def encode(self, text):
        return list(range(len(text.split())))

    def decode(self, token_ids):
        raise NotImplementedError


toolkit = CodeExecutionToolkit(sandbox="e2b")
model = ModelFactory.create(ModelPlatformType.OPENAI, ModelType.GPT_4O, token_counter=Words())
agent = ChatAgent(model=model, tools=toolkit.get_tools())
print(agent.step("Which sandbox is this, and what is 6 times 7?").msgs[0].content)
