"""The state that faults, clients and checks share."""

import threading
from dataclasses import dataclass, field

from chaos.ledger import Ledger
from chaos.outages import Outages
from chaos.platform import Platform
from chaos.violations import Violations


@dataclass
class Context:
    seed: int
    platform: Platform
    ledger: Ledger
    violations: Violations
    # Set when clients should finish their turn and stop.
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def outages(self) -> Outages:
        return self.platform.outages
