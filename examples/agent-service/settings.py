"""Settings, all from the environment. README.md has the table."""

import os
import sys
from dataclasses import dataclass

from model import Model, OpenAIModel
from scripted import ScriptedModel


@dataclass
class Settings:
    bind: str
    port: int
    script: str
    model_name: str
    timeout: float
    retries: int
    redis_url: str

    @staticmethod
    def from_environment() -> "Settings":
        environment = os.environ.get
        if not environment("E2B_API_KEY"):
            sys.exit('E2B_API_KEY is not set, so agents would have no sandbox. Try: eval "$(isopod env)"')
        if not environment("AGENT_SCRIPT") and not (environment("MODEL") and environment("OPENAI_API_KEY")):
            sys.exit("Set MODEL and OPENAI_API_KEY, and OPENAI_BASE_URL for another service than OpenAI's. "
                     "To try it without a model, set AGENT_SCRIPT to a file with answers.")
        return Settings(
            bind=environment("AGENT_BIND", "127.0.0.1"),
            port=int(environment("AGENT_PORT", "8000")),
            script=environment("AGENT_SCRIPT", ""),
            model_name=environment("MODEL", ""),
            timeout=float(environment("MODEL_TIMEOUT", "60")),
            retries=int(environment("MODEL_RETRIES", "2")),
            redis_url=environment("REDIS_URL", ""),
        )

    def model(self) -> Model:
        if self.script:
            try:
                return ScriptedModel(self.script)
            except (OSError, ValueError) as error:
                sys.exit(f"AGENT_SCRIPT: {self.script} can't be read: {error}")
        return OpenAIModel(self.model_name, timeout=self.timeout, retries=self.retries)
