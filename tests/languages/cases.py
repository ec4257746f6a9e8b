"""R and Java with the Python SDK, sync and async: values, output, errors, state, plots, interrupts and contexts."""

import base64
import sys
import warnings
from pathlib import Path

SDK = Path(__file__).resolve().parents[1] / "sdk"
sys.path[:0] = [str(SDK), str(SDK / "python")]
warnings.simplefilter("ignore")

import e2b  # noqa: E402
import e2b_code_interpreter  # noqa: E402
from kit import Flavour, go, raises  # noqa: E402

from harness.cases import case, main  # noqa: E402

TEMPLATE = "code-interpreter-full"


class InterpreterFlavour(Flavour):
    """The sync or the async code interpreter."""

    def __init__(self, name):
        super().__init__(name)
        self.Sandbox = e2b_code_interpreter.AsyncSandbox if name == "async" else e2b_code_interpreter.Sandbox


class Runner:
    """A sandbox and a language."""

    def __init__(self, sandbox, language):
        self.sandbox, self.language = sandbox, language

    async def __call__(self, code, **options):
        return await go(self.sandbox.run_code(code, language=self.language, **options))


def stdout(execution):
    return "".join(execution.logs.stdout)


@case("languages")
async def r_keeps_state_prints_and_shows_values(sdk):
    async with sdk.sandbox(TEMPLATE, envs={"BASE": "sandbox"}) as sandbox:
        run = Runner(sandbox, "r")
        assert (await run("x <- 20")).results == []
        execution = await run("cat('out\\n'); message('err'); x * 2 + 2")
        assert stdout(execution) == "out\n" and "err" in "".join(execution.logs.stderr)
        assert [result.text for result in execution.results] == ["[1] 42"]
        table = (await run("data.frame(a = 1:2, b = c('x', 'y'))")).results[0]
        assert "<table" in table.html and "x" in table.text
        code = "cat(Sys.getenv('BASE'), Sys.getenv('CALL'), getwd())"
        assert stdout(await run(code, envs={"CALL": "it's"})) == "sandbox it's /home/user"
        assert stdout(await run(code)) == "sandbox  /home/user"


@case("languages")
async def r_reports_errors(sdk):
    async with sdk.sandbox(TEMPLATE) as sandbox:
        run = Runner(sandbox, "r")
        assert "wrong" in (await run("f <- function() stop('wrong'); f()")).error.value
        assert (await run("x <- (")).error is not None
        assert "nosuch" in (await run("nosuch")).error.value


@case("languages")
async def r_plots_are_png(sdk):
    async with sdk.sandbox(TEMPLATE) as sandbox:
        results = (await go(sandbox.run_code("plot(1:3, main = 'Title')", language="r"))).results
        pictures = [base64.b64decode(result.png) for result in results if result.png]
        assert len(pictures) == 1 and pictures[0].startswith(b"\x89PNG\r\n\x1a\n")


@case("languages")
async def java_keeps_state_prints_and_shows_values(sdk):
    async with sdk.sandbox(TEMPLATE, envs={"BASE": "sandbox"}) as sandbox:
        run = Runner(sandbox, "java")
        assert (await run("int x = 20;")).results == []
        execution = await run('System.out.println("out"); System.err.println("err"); x * 2 + 2')
        assert stdout(execution) == "out\n" and "".join(execution.logs.stderr) == "err\n"
        assert execution.text == "42"
        await run("record Point(int a, int b) {}\nint sum(Point p) { return p.a() + p.b(); }")
        assert (await run("sum(new Point(1, x))")).text == "21"
        assert (await run('String.join("-", List.of("a", "b"))')).text == "a-b"
        code = 'System.getenv("BASE") + System.getProperty("CALL") + Path.of("").toAbsolutePath()'
        assert (await run(code, envs={"CALL": "1"})).text == "sandbox1/home/user"
        assert (await run(code)).text == "sandboxnull/home/user"


@case("languages")
async def java_reports_errors(sdk):
    async with sdk.sandbox(TEMPLATE) as sandbox:
        run = Runner(sandbox, "java")
        error = (await run('throw new IllegalStateException("wrong");')).error
        assert (error.name, error.value) == ("java.lang.IllegalStateException", "wrong")
        assert error.traceback.startswith("java.lang.IllegalStateException: wrong\n\tat (#")
        error = (await run('int y = "text";')).error
        assert error.name == "CompilationError" and "incompatible types" in error.value


@case("languages")
async def java_that_exits_starts_anew(sdk):
    async with sdk.sandbox(TEMPLATE) as sandbox:
        run = Runner(sandbox, "java")
        await run("int lost = 1;")
        assert (await run("System.exit(0);")).error is not None
        assert (await run("lost")).error.name == "CompilationError"
        assert (await run("1 + 1")).text == "2"


@case("interrupts")
async def a_timeout_keeps_the_state_of_r(sdk):
    async with sdk.sandbox(TEMPLATE) as sandbox:
        run = Runner(sandbox, "r")
        await run("kept <- 7")
        for code in ("while (TRUE) {}", "Sys.sleep(600)"):
            async with raises(e2b.TimeoutException):
                await run(code, timeout=2)
            assert stdout(await run("cat(kept)")) == "7"


@case("interrupts")
async def a_timeout_keeps_the_state_of_java(sdk):
    async with sdk.sandbox(TEMPLATE) as sandbox:
        run = Runner(sandbox, "java")
        await run("int kept = 7;")
        for code in ("while (true) {}", "Thread.sleep(600_000);"):
            async with raises(e2b.TimeoutException):
                await run(code, timeout=2)
            assert (await run("kept")).text == "7"


@case("contexts")
async def contexts_of_r_and_java_are_separate(sdk):
    async with sdk.sandbox(TEMPLATE) as sandbox:
        for language, assign, read in (("r", "x <- '%s'; setwd('.')", "cat(x, getwd())"), ("java", 'String x = "%s";', 'System.out.print(x + " " + Path.of("").toAbsolutePath())')):
            contexts = [await go(sandbox.create_code_context(language=language, cwd=cwd)) for cwd in ("/tmp", "/root")]
            for context in contexts:
                assert context.language == language
                await go(sandbox.run_code(assign % context.cwd, context=context))
            for context in contexts:
                assert stdout(await go(sandbox.run_code(read, context=context))) == f"{context.cwd} {context.cwd}"


@case("languages")
async def the_other_languages_are_there_too(sdk):
    async with sdk.sandbox(TEMPLATE) as sandbox:
        assert (await go(sandbox.run_code("import pandas, matplotlib; 6 * 7"))).text == "42"
        assert (await go(sandbox.run_code("6 * 7", language="ts"))).text == "42"
        assert stdout(await go(sandbox.run_code("echo $((6 * 7))", language="bash"))) == "42\n"


if __name__ == "__main__":
    main(InterpreterFlavour, workers=2)
