"""Code in the default context: state, results and their forms, errors, output as it comes, environment."""

import ast
import base64
import json
import os
from pathlib import Path

from harness.cases import case
from kit import go

IS_FULL = os.environ.get("ISOPOD_FULL") == "1"
PACKAGES = Path(__file__).resolve().parents[3] / "crates/node/recipes/code-interpreter-v1/packages.txt"


@case("code", core=True)
async def names_stay_from_call_to_call(sdk):
    async with sdk.sandbox() as sandbox:
        first = await go(sandbox.run_code("x = 20"))
        second = await go(sandbox.run_code("x * 2 + 2"))
        assert first.results == [] and first.text is None
        assert second.text == "42" and second.results[0].is_main_result
        assert second.execution_count == first.execution_count + 1
        assert second.error is None


@case("code", core=True)
async def an_error_has_name_value_and_traceback(sdk):
    async with sdk.sandbox() as sandbox:
        error = (await go(sandbox.run_code("def f():\n    raise ValueError('wrong')\nf()"))).error
        assert (error.name, error.value) == ("ValueError", "wrong")
        assert "line 2" in error.traceback and "\x1b" not in error.traceback
        assert (await go(sandbox.run_code("for"))).error.name == "SyntaxError"
        assert (await go(sandbox.run_code("1"))).text == "1"


@case("code")
async def the_packages_of_e2b_can_be_imported(sdk):
    """All of the list, in its versions, except those that `isopod doctor` says this host's Python cannot have."""
    wanted = listed_versions() | json.loads(os.environ["ISOPOD_SUITE_PACKAGES"])
    modules = {"sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv-python-headless", "docx": "python-docx", "skimage": "scikit-image"}
    same = "numpy pandas matplotlib scipy plotly bokeh xarray nltk gensim imageio numba sympy"
    slow = "seaborn openpyxl spacy librosa"
    names = [name for name in [*modules, *same.split(), *slow.split()] if wanted.get(modules.get(name, name), "any")]
    async with sdk.sandbox() as sandbox:
        found = ast.literal_eval((await go(sandbox.run_code(VERSIONS % list(wanted)))).text)
        assert found == wanted, {name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name]}
        present = f"from importlib.util import find_spec\n[n for n in {names} if not find_spec(n)]"
        assert (await go(sandbox.run_code(present))).text == "[]"
        for name in names:
            if IS_FULL or name not in slow.split():
                imported = await go(sandbox.run_code(f"import {name}"))
                assert imported.error is None, (name, imported.error)


VERSIONS = """
from importlib.metadata import PackageNotFoundError, version

def version_or_none(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None

{name: version_or_none(name) for name in %s}
"""


def listed_versions():
    """The packages that the template's list has with exact versions."""
    lines = PACKAGES.read_text().splitlines()
    words = [word for line in lines if not line.startswith("#") for word in line.split() if "==" in word]
    return dict(word.split("==") for word in words)


@case("code")
async def leaving_and_asking_are_errors_and_the_state_stays(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.run_code("kept = 1"))
        for code, name in (("import sys; sys.exit(1)", "SystemExit"), ("exit()", "SystemExit")):
            assert (await go(sandbox.run_code(code))).error.name == name
        assert (await go(sandbox.run_code("input('?')"))).error.name == "StdinNotImplementedError"
        assert (await go(sandbox.run_code("kept"))).text == "1"


@case("code")
async def magics_commands_and_await_work(sdk):
    async with sdk.sandbox() as sandbox:
        assert "".join((await go(sandbox.run_code("!echo hi"))).logs.stdout) == "hi\n"
        assert "".join((await go(sandbox.run_code("%%bash\necho from bash"))).logs.stdout) == "from bash\n"
        assert (await go(sandbox.run_code("import asyncio\nawait asyncio.sleep(0, 'done')"))).text == "done"
        assert "pip " in "".join((await go(sandbox.run_code("pip --version"))).logs.stdout)


@case("code")
async def files_are_those_of_the_sandbox(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.files.write("/home/user/given.txt", "given"))
        assert (await go(sandbox.run_code("open('given.txt').read()"))).text == "given"
        await go(sandbox.run_code("open('made.txt', 'w').write('made')"))
        assert await go(sandbox.files.read("/home/user/made.txt")) == "made"
        assert (await go(sandbox.commands.run("stat -c %U /home/user/made.txt"))).stdout == "root\n"


@case("code-streams", core=True)
async def callbacks_hear_everything_in_order(sdk):
    heard = []
    code = "import sys\nprint('a')\ndisplay(1)\nprint('b', file=sys.stderr)\nprint('c')\ndisplay(2)\nraise KeyError('k')"
    async with sdk.sandbox() as sandbox:
        execution = await go(
            sandbox.run_code(
                code,
                on_stdout=lambda message: heard.append(("out", message.line, message.error)),
                on_stderr=lambda message: heard.append(("err", message.line, message.error)),
                on_result=lambda result: heard.append(("result", result.text)),
                on_error=lambda error: heard.append(("error", error.name)),
            )
        )
    first, second = {("out", False): "a\n"}, {("out", False): "c\n", ("err", True): "b\n"}
    assert with_output_joined(heard) == [first, ("result", "1"), second, ("result", "2"), ("error", "KeyError")], heard
    assert ("".join(execution.logs.stdout), "".join(execution.logs.stderr)) == ("a\nc\n", "b\n"), execution.logs
    assert execution.error.name == "KeyError"


def with_output_joined(heard):
    """What was heard, with the output between two other events as one text for each stream: a line may come in parts, and stdout and
    stderr have no order relative to each other."""
    joined = []
    for event in heard:
        if event[0] not in ("out", "err"):
            joined.append(event)
            continue
        if not joined or not isinstance(joined[-1], dict):
            joined.append({})
        stream, line, is_error = event
        joined[-1][stream, is_error] = joined[-1].get((stream, is_error), "") + line
    return joined


@case("code-streams", core=True)
async def output_comes_while_the_code_runs(sdk):
    """The code continues only when its first line was received outside."""
    heard = []
    code = (
        "import os, time\nprint('first')\nend = time.monotonic() + 30\n"
        "while not os.path.exists('/tmp/heard') and time.monotonic() < end: time.sleep(0.01)\n"
        "print(os.path.exists('/tmp/heard'))"
    )
    async with sdk.sandbox() as sandbox:

        def hear(message):
            heard.append(message)
            # Done at once by one SDK, awaited by the other.
            return sandbox.files.write("/tmp/heard", "") if len(heard) == 1 else None

        execution = await go(sandbox.run_code(code, on_stdout=hear))
    assert "".join(execution.logs.stdout) == "first\nTrue\n", execution.logs
    # A pipe may hand over a line in parts.
    assert "".join(message.line for message in heard) == "first\nTrue\n" and len(heard) >= 2, heard
    assert all(message.timestamp for message in heard)


@case("code-streams")
async def children_and_c_code_are_heard(sdk):
    async with sdk.sandbox() as sandbox:
        code = "import os, subprocess\nos.write(1, b'c\\n')\nsubprocess.run('echo out; echo err >&2', shell=True);"
        logs = (await go(sandbox.run_code(code))).logs
        assert ("".join(logs.stdout), "".join(logs.stderr)) == ("c\nout\n", "err\n")


@case("code-streams", core=True)
async def large_output_arrives_whole(sdk):
    async with sdk.sandbox() as sandbox:
        execution = await go(sandbox.run_code("for i in range(300_000): print(i)"))
        assert "".join(execution.logs.stdout) == "".join(f"{i}\n" for i in range(300_000))
        text = (await go(sandbox.run_code("'ü' * 3_000_000"))).text
        assert text == "ü" * 3_000_000


@case("code-env", core=True)
async def variables_of_the_sandbox_and_of_a_call(sdk):
    async with sdk.sandbox(envs={"BASE": "sandbox", "KEPT": "yes"}) as sandbox:
        code = "import os\n(os.environ['BASE'], os.environ['KEPT'], os.environ.get('CALL'))"
        assert (await go(sandbox.run_code(code))).text == "('sandbox', 'yes', None)"
        called = await go(sandbox.run_code(code, envs={"BASE": "call", "CALL": "it's"}))
        assert called.text == "('call', 'yes', \"it's\")"
        assert (await go(sandbox.run_code(code))).text == "('sandbox', 'yes', None)"


@case("code-env", seconds=280)
async def a_cell_installs_a_package_of_the_distribution(sdk):
    async with sdk.sandbox(timeout=300) as sandbox:
        assert (await go(sandbox.run_code("import shutil; shutil.which('hello') is None"))).text == "True"
        install = "!apt-get update -qq && apt-get install -y -qq --no-install-recommends hello && hello"
        execution = await go(sandbox.run_code(install, timeout=250))
        assert execution.error is None and "Hello, world!" in "".join(execution.logs.stdout), execution
        assert (await go(sandbox.commands.run("hello"))).stdout == "Hello, world!\n"


@case("code-env", core=True)
async def code_runs_as_root_in_the_users_home(sdk):
    async with sdk.sandbox() as sandbox:
        execution = await go(sandbox.run_code("import os, getpass\n(os.getcwd(), getpass.getuser(), os.environ['HOME'])"))
        assert execution.text == "('/home/user', 'root', '/root')"
        assert "".join((await go(sandbox.run_code("!id -u; apt-get check -qq && echo checked"))).logs.stdout) == "0\nchecked\n"
        await go(sandbox.run_code("open('/written', 'w').write('x')\nopen('mine', 'w').write('by root')"))
        assert await go(sandbox.files.read("/written")) == "x"
        await go(sandbox.files.write("mine", "by the client"))
        assert (await go(sandbox.run_code("open('mine').read()"))).text == "by the client"
        context = await go(sandbox.create_code_context(cwd="/root"))
        assert (await go(sandbox.run_code("import os; os.getcwd()", context=context))).text == "/root"
        await go(sandbox.run_code("os.chdir('/tmp')"))
        assert (await go(sandbox.run_code("os.getcwd()"))).text == "/tmp"


@case("forms", core=True)
async def a_table_has_text_html_and_data(sdk):
    async with sdk.sandbox() as sandbox:
        code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 't': [pd.Timestamp('2024-01-02'), pd.NaT]})"
        result = (await go(sandbox.run_code(code))).results[0]
        assert result.data == {"a": [1, 2], "t": ["2024-01-02T00:00:00", None]}
        assert "<table" in result.html and set(result.formats()) >= {"text", "html", "data"}


@case("forms", core=True)
async def images_are_png(sdk):
    async with sdk.sandbox() as sandbox:
        code = "from PIL import Image\nimage = Image.new('RGB', (3, 2), 'red')\nimage"
        assert base64.b64decode((await go(sandbox.run_code(code))).results[0].png).startswith(b"\x89PNG")
        saved = await go(sandbox.run_code("image.save('red.png')"))
        assert len(saved.results) == 1 and saved.results[0].png and not saved.results[0].is_main_result
        figure = (await go(sandbox.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"))).results
        assert base64.b64decode(figure[0].png).startswith(b"\x89PNG")


@case("forms")
async def every_form_has_its_field(sdk):
    code = (
        "from IPython.display import *\n"
        "display(HTML('<b>'), Markdown('*m*'), SVG('<svg/>'), Latex('$x$'), JSON({'a': 1}), Javascript('1'))\n"
        "display({'application/x-own': 'o'}, raw=True)\n[1, {'b': None}]"
    )
    async with sdk.sandbox() as sandbox:
        results = (await go(sandbox.run_code(code))).results
    html, markdown, svg, latex, json, javascript, own, main = results
    assert (html.html, markdown.markdown, svg.svg, latex.latex) == ("<b>", "*m*", "<svg/>", "$x$")
    assert (json.json, javascript.javascript, own.extra) == ({"a": 1}, "1", {"application/x-own": "o"})
    assert main.json == [1, {"b": None}] and main.is_main_result
    assert not any(result.is_main_result for result in results[:-1])


@case("forms")
async def strings_are_shown_without_quotes(sdk):
    async with sdk.sandbox() as sandbox:
        assert (await go(sandbox.run_code("'it is'"))).text == "it is"


@case("forms")
async def a_huge_result_is_cut_with_a_marker(sdk):
    async with sdk.sandbox() as sandbox:
        text = (await go(sandbox.run_code("'x' * (11 * 1024 * 1024)"))).text
        assert text.endswith("(truncated: 1048576 bytes)"), text[-80:]
