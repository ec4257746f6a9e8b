"""A task of Inspect whose samples run in E2B sandboxes, by inspect-sandboxes."""

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, bash_session, python, text_editor

tools = [bash(timeout=60), python(timeout=60), text_editor(timeout=60), bash_session()]
task = Task(
    dataset=[Sample(input="Which sandbox is this, and what is 6 times 7?", target="42")],
    solver=[use_tools(tools), generate()],
    scorer=includes(),
    sandbox="e2b",
)
[log] = eval(task, model="openai/gpt-4o", display="none", log_dir="logs")
assert log.status == "success", log.error
[sample] = log.samples
print(sample.output.completion, sample.scores["includes"].value)
