"""Languages besides Python: state, output, errors, environment and directory in each."""

import functools

import e2b
from harness.cases import case
from kit import go, raises


@case("languages", core=True)
async def javascript_and_typescript(sdk):
    async with sdk.sandbox(envs={"BASE": "sandbox"}) as sandbox:
        for language in ("javascript", "js", "typescript", "ts"):
            execution = await go(sandbox.run_code("console.log('out'); console.error('err'); 6 * 7", language=language))
            assert "".join(execution.logs.stdout) == "out\n" and "".join(execution.logs.stderr) == "err\n", language
            assert execution.text == "42", language
        await go(sandbox.run_code("const x: number = await Promise.resolve(20)", language="ts"))
        assert (await go(sandbox.run_code("x + 1", language="ts"))).text == "21"
        code = "import path from 'node:path'; path.basename('/a/b')"
        assert (await go(sandbox.run_code(code, language="ts"))).text == "b"
        error = (await go(sandbox.run_code("throw new RangeError('far')", language="js"))).error
        assert (error.name, error.value) == ("RangeError", "far")
        code = "process.env.BASE + process.env.CALL"
        assert (await go(sandbox.run_code(code, language="js", envs={"CALL": "1"}))).text == "sandbox1"
        assert (await go(sandbox.run_code(code, language="js"))).text == "sandboxundefined"


@case("languages", core=True)
async def javascript_in_the_template_nodejs(sdk):
    async with sdk.sandbox("nodejs", envs={"BASE": "sandbox"}) as sandbox:
        run = functools.partial(sandbox.run_code, language="javascript")
        assert (await go(run("6*7"))).text == "42"
        await go(run("const x = await Promise.resolve(20)"))
        execution = await go(run("console.log('out'); console.error('err'); x * 2 + 2"))
        assert "".join(execution.logs.stdout) == "out\n" and "".join(execution.logs.stderr) == "err\n"
        assert execution.text == "42"
        assert (await go(run("process.versions.node.split('.').length + require('path').sep"))).text == "3/"
        error = (await go(run("function f() {\n  throw new RangeError('far')\n}\nf()"))).error
        assert (error.name, error.value) == ("RangeError", "far") and "at f (" in error.traceback
        code = "[process.env.BASE, process.env.CALL, process.cwd(), process.getuid()].join()"
        assert (await go(run(code, envs={"CALL": "1"}))).text == "sandbox,1,/home/user,0"
        assert (await go(run(code))).text == "sandbox,,/home/user,0"
        # Without a language, code is Python, as everywhere.
        assert (await go(sandbox.run_code("import sys; sys.version_info.major"))).text == "3"


@case("languages")
async def node_uses_packages_that_npm_installed(sdk):
    async with sdk.sandbox("nodejs", timeout=300) as sandbox:
        await go(sandbox.commands.run("npm install --no-audit --no-fund is-number@7.0.0", timeout=200))
        for code in ("const isNumber = require('is-number'); isNumber(5)", "import isNumber from 'is-number'\nisNumber('5')"):
            execution = await go(sandbox.run_code(code, language="js"))
            assert execution.error is None and execution.text == "true", execution


@case("languages")
async def a_timeout_in_node_keeps_its_state(sdk):
    async with sdk.sandbox("nodejs") as sandbox:
        await go(sandbox.run_code("let kept = 7", language="js"))
        for code in ("while (true) {}", "await new Promise(() => {})"):
            async with raises(e2b.TimeoutException):
                await go(sandbox.run_code(code, language="js", timeout=2))
            assert (await go(sandbox.run_code("kept", language="js"))).text == "7"


@case("languages", core=True)
async def bash(sdk):
    async with sdk.sandbox(envs={"BASE": "sandbox"}) as sandbox:
        await go(sandbox.run_code("x=5", language="bash"))
        execution = await go(sandbox.run_code("echo $x $BASE $CALL", language="bash", envs={"CALL": "it's"}))
        assert "".join(execution.logs.stdout) == "5 sandbox it's\n"
        assert (await go(sandbox.run_code("false", language="bash"))).error is not None


@case("languages")
async def contexts_of_a_language_have_their_directory(sdk):
    async with sdk.sandbox() as sandbox:
        for language, code in (("javascript", "process.cwd()"), ("typescript", "Deno.cwd()")):
            context = await go(sandbox.create_code_context(language=language, cwd="/tmp"))
            assert (context.language, context.cwd) == (language, "/tmp")
            assert (await go(sandbox.run_code(code, context=context))).text == "/tmp"
        context = await go(sandbox.create_code_context(language="bash", cwd="/tmp"))
        assert "".join((await go(sandbox.run_code("pwd", context=context))).logs.stdout) == "/tmp\n"


@case("languages")
async def a_timeout_in_another_language_leaves_it_usable(sdk):
    async with sdk.sandbox() as sandbox:
        await go(sandbox.run_code("1", language="js"))
        async with raises(e2b.TimeoutException):
            await go(sandbox.run_code("while (true) {}", language="js", timeout=1))
        assert (await go(sandbox.run_code("2", language="js"))).text == "2"


@case("languages")
async def a_missing_language_says_what_is_there(sdk):
    async with sdk.sandbox() as sandbox:
        # The host may have R.
        has_r = "R" in (await go(sandbox.commands.run("command -v R || true"))).stdout
        for language in ("klingon",) if has_r else ("klingon", "r"):
            for call in (lambda: sandbox.run_code("1", language=language), lambda: sandbox.create_code_context(language=language)):
                async with raises(e2b.NotFoundException) as seen:
                    await go(call())
                message = str(seen.error)
                assert f"'{language}'" in message and "'code-interpreter-full'" in message, message
                assert "bash, " in message and "javascript, " in message and "python, " in message, message


@case("languages", seconds=280)
async def r_once_its_kernel_is_installed(sdk):
    async with sdk.sandbox(timeout=300) as sandbox:
        install = "sudo apt-get update -qq && sudo apt-get install -y -qq --no-install-recommends r-cran-irkernel"
        await go(sandbox.commands.run(install, timeout=250))
        await go(sandbox.run_code("x <- 20", language="r"))
        execution = await go(sandbox.run_code("cat('out\\n'); x * 2 + 2", language="r"))
        assert "".join(execution.logs.stdout) == "out\n" and execution.results[0].text == "[1] 42"
        code = "cat(Sys.getenv('CALL'), getwd())"
        called = await go(sandbox.run_code(code, language="r", envs={"CALL": "it's"}))
        assert "".join(called.logs.stdout) == "it's /home/user"
        assert "wrong" in (await go(sandbox.run_code("stop('wrong')", language="r"))).error.value
