// R and Java with the JavaScript SDK.
import { assert, feature, rejects, sdk, withSandbox } from '../sdk/js/kit.mjs'

const template = 'code-interpreter-full'
const joined = (lines) => lines.join('')

feature('languages', 'R', () =>
  withSandbox({ template }, async (sandbox) => {
    const run = (code, options) => sandbox.runCode(code, { language: 'r', ...options })
    await run('x <- 20')
    const execution = await run("cat('out\\n'); x * 2 + 2")
    assert.equal(joined(execution.logs.stdout), 'out\n')
    assert.equal(execution.results[0].text, '[1] 42')
    assert((await run("stop('wrong')")).error.value.includes('wrong'))
    const { results } = await run('hist(c(1, 2, 2, 3))')
    assert(Buffer.from(results.find(({ png }) => png).png, 'base64').subarray(1, 4).equals(Buffer.from('PNG')))
  })
)

feature('languages', 'Java', () =>
  withSandbox({ template }, async (sandbox) => {
    const run = (code, options) => sandbox.runCode(code, { language: 'java', ...options })
    await run('int x = 20;')
    const execution = await run('System.out.println("out"); x * 2 + 2')
    assert.deepEqual([joined(execution.logs.stdout), execution.text], ['out\n', '42'])
    const { error } = await run('throw new RuntimeException("wrong");')
    assert.deepEqual([error.name, error.value], ['java.lang.RuntimeException', 'wrong'])
    await rejects(run('while (true) {}', { timeoutMs: 2000 }), sdk.TimeoutError)
    assert.equal((await run('x')).text, '20')
  })
)

feature('contexts', 'contexts of R and Java', () =>
  withSandbox({ template }, async (sandbox) => {
    for (const [language, code] of [['r', 'cat(getwd())'], ['java', 'System.out.print(Path.of("").toAbsolutePath())']]) {
      const context = await sandbox.createCodeContext({ language, cwd: '/tmp' })
      assert.deepEqual([context.language, context.cwd], [language, '/tmp'])
      assert.equal(joined((await sandbox.runCode(code, { context })).logs.stdout), '/tmp')
    }
  })
)
