"""One agent of the first seed, in a process of its own: the official SDK, and a Redis that says which sandbox a run has.

    python agent.py RUN_ID execute CODE | kill

Prints one line of JSON. Which server and which Redis stands in the environment.
"""

import json
import os
import sys

import redis
from e2b_code_interpreter import Sandbox

LIFE_OF_SANDBOX = 600
LIFE_OF_KEY = 3600


def sandbox_of(run, memory):
    """The run's sandbox: the one that Redis names, or a new one."""
    key = f"raro:e2b_session:{run}"
    known = memory.get(key)
    if known:
        try:
            return Sandbox.connect(known), False
        except Exception as error:
            print(f"{known} cannot be used: {error}", file=sys.stderr)
            memory.delete(key)
    made = Sandbox.create(timeout=LIFE_OF_SANDBOX)
    memory.setex(key, LIFE_OF_KEY, made.sandbox_id)
    return made, True


def execute(run, memory, code):
    sandbox, is_new = sandbox_of(run, memory)
    done = sandbox.run_code(code)
    error = f"{done.error.name}: {done.error.value}" if done.error else None
    return {"sandbox": sandbox.sandbox_id, "new": is_new, "text": done.text, "error": error}


def kill(run, memory):
    known = memory.get(f"raro:e2b_session:{run}")
    killed = bool(known) and Sandbox.kill(known)
    memory.delete(f"raro:e2b_session:{run}")
    return {"sandbox": known, "killed": killed}


def main():
    run, verb, *rest = sys.argv[1:]
    memory = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
    verbs = {"execute": execute, "kill": kill}
    print(json.dumps(verbs[verb](run, memory, *rest)))


main()
