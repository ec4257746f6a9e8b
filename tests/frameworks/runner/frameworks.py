"""The frameworks, and what is needed to run the program of each.

A directory beside this package has the name of its framework. It holds `requirements.txt` or `package.json`, the script of
the model, and the program: `app.py` or `app.mjs`. Frameworks without a program take theirs from docs/frameworks.md.

To move to newer versions, change `requirements.in` or `package.json` of a framework, and in its directory run one of these, with the
framework's oldest Python:

    uv pip compile --upgrade --universal --no-annotate --no-header --python-version 3.11 requirements.in -o requirements.txt
    npm install --package-lock-only --omit-lockfile-registry-resolved --legacy-peer-deps
"""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Framework:
    name: str
    title: str
    packages: tuple
    # The packages of E2B that it calls, the one that decides first.
    sdk: tuple = ("e2b",)
    language: str = "python"
    # The oldest Python that its packages accept.
    python: tuple = (3, 11)
    # Whether it runs with every change, not only with --full.
    every_change: bool = False

    @property
    def directory(self):
        return HERE / self.name


INTERPRETER = ("e2b-code-interpreter", "e2b")
# Three that differ in language and in the age of their SDK run with every change.
FRAMEWORKS = [
    Framework("smolagents", "smolagents", ("smolagents",), INTERPRETER, every_change=True),
    Framework("langchain", "LangChain Deep Agents", ("langchain-e2b", "deepagents")),
    Framework("openai-agents", "OpenAI Agents SDK, Python", ("openai-agents",)),
    Framework("openai-agents-js", "OpenAI Agents SDK, JavaScript", ("@openai/agents-extensions",), language="js"),
    Framework("mastra", "Mastra", ("@mastra/e2b", "@mastra/core"), language="js"),
    Framework("crewai", "CrewAI", ("crewai-tools", "crewai"), INTERPRETER),
    Framework("agno", "Agno", ("agno",), INTERPRETER),
    Framework("camel", "CAMEL", ("camel-ai",), INTERPRETER),
    Framework("google-adk", "Google ADK", ("google-adk",)),
    Framework("haystack", "Haystack", ("e2b-haystack", "haystack-ai")),
    Framework("inspect-ai", "Inspect", ("inspect-sandboxes", "inspect-ai"), python=(3, 12)),
    Framework("harbor", "Harbor", ("harbor",), python=(3, 12)),
    Framework("computesdk", "ComputeSDK", ("@computesdk/e2b", "computesdk"), language="js", every_change=True),
    Framework("vibekit", "VibeKit", ("@vibe-kit/e2b", "@vibe-kit/sdk"), ("@e2b/code-interpreter", "e2b"), language="js"),
    Framework("e2b-mcp-server", "E2B's MCP server", ("e2b-mcp-server",), INTERPRETER, every_change=True),
]
