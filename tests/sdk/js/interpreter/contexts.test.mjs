// Contexts, timeouts, crashes, restarts during execution, killed and reconnected sandboxes.
import { Sandbox, assert, cannot, feature, has, pauseToDisk, rejects, sdk, sleep, withSandbox } from '../kit.mjs'

feature('contexts', 'contexts have their own state and directory', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const context = await sandbox.createCodeContext({ cwd: '/tmp' })
    assert.deepEqual([context.language, context.cwd], ['python', '/tmp'])
    await sandbox.runCode('x = 1')
    await sandbox.runCode('x = 2', { context })
    assert.equal((await sandbox.runCode('x')).text, '1')
    assert.equal((await sandbox.runCode('x', { context })).text, '2')
    assert.equal((await sandbox.runCode('import os; os.getcwd()', { context })).text, '/tmp')
  })
)

feature('code-env', 'code runs as root in the home of the user', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const code = "import os\n(os.getuid(), os.getcwd(), os.environ['HOME'])"
    assert.equal((await sandbox.runCode(code)).text, "(0, '/home/user', '/root')")
    await sandbox.runCode("open('/written', 'w').write('x')")
    assert.equal(await sandbox.files.read('/written'), 'x')
    await sandbox.files.write('/written', 'y')
    assert.equal((await sandbox.runCode("open('/written').read()")).text, 'y')
    const context = await sandbox.createCodeContext({ cwd: '/root' })
    assert.equal((await sandbox.runCode('import os; os.getcwd()', { context })).text, '/root')
  })
)

feature('contexts', 'contexts are listed, restarted and removed', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const list = has(sandbox, 'listCodeContexts')
    const context = await sandbox.createCodeContext()
    const listed = await list()
    assert(listed.some(({ id }) => id === context.id))
    assert(listed.some(({ id, language }) => id !== context.id && language === 'python'))
    await sandbox.runCode('x = 1', { context })
    await sandbox.restartCodeContext(context)
    assert.equal((await sandbox.runCode('x', { context })).error.name, 'NameError')
    await sandbox.removeCodeContext(context.id)
    assert(!(await list()).some(({ id }) => id === context.id))
    await rejects(sandbox.runCode('1', { context }))
  })
)

feature('contexts', "contexts are listed in E2B's order", { core: true }, () =>
  withSandbox(async (sandbox) => {
    const first = await sandbox.createCodeContext()
    await sandbox.runCode('echo made by its first use', { language: 'bash' })
    const listed = await has(sandbox, 'listCodeContexts')()
    assert.deepEqual(listed.map(({ language }) => language), ['python', 'javascript', 'python', 'bash'])
    assert.equal(listed[2].id, first.id)
  })
)

feature('contexts', 'a context of another language', () =>
  withSandbox(async (sandbox) => {
    const context = await sandbox.createCodeContext({ language: 'javascript', cwd: '/tmp' })
    assert.deepEqual([context.language, context.cwd], ['javascript', '/tmp'])
    assert.equal((await sandbox.runCode('process.cwd()', { context })).text, '/tmp')
  })
)

feature('contexts', 'unknown contexts are refused by name', () =>
  withSandbox(async (sandbox) => {
    const error = await rejects(sandbox.removeCodeContext('no-such-context'))
    assert(error.message.includes('no-such-context'))
  })
)

feature('contexts', 'contexts run at the same time', () =>
  withSandbox(async (sandbox) => {
    const contexts = await Promise.all([1, 2, 3].map(() => sandbox.createCodeContext()))
    const start = Date.now()
    await Promise.all(contexts.map((context) => sandbox.runCode('import time; time.sleep(2)', { context })))
    assert(Date.now() - start < 5500)
  })
)

feature('interrupts', 'a time-out interrupts the code and keeps the state', { core: true }, () =>
  withSandbox(async (sandbox) => {
    await sandbox.runCode('kept = 1')
    await rejects(sandbox.runCode('import time\nwhile True: time.sleep(0.1)', { timeoutMs: 1000 }))
    assert.equal((await sandbox.runCode('kept')).text, '1')
  })
)

feature('recovery', 'a dead kernel is reported and replaced', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const { error } = await sandbox.runCode('import os, signal; os.kill(os.getpid(), signal.SIGKILL)')
    assert(error.name && error.value)
    assert.equal((await sandbox.runCode('1 + 1')).text, '2')
  })
)

feature('recovery', 'a restart ends the call under way', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const context = await sandbox.createCodeContext()
    const running = sandbox.runCode('import time; time.sleep(60)', { context })
    await sleep(1000)
    await has(sandbox, 'restartCodeContext')(context)
    assert.equal((await running).error.name, 'ContextRestarting')
    assert.equal((await sandbox.runCode('1', { context })).text, '1')
  })
)

feature('recovery', 'a killed sandbox is not found', { core: true }, () =>
  withSandbox(async (sandbox) => {
    await sandbox.runCode('1')
    await sandbox.kill()
    await rejects(sandbox.runCode('1'))
  })
)

feature('recovery', "a sandbox killed under code is told in the SDK's own words", () =>
  withSandbox(async (sandbox) => {
    cannot(['2.7.2', '2.7.0'], 'it does not check what became of the sandbox')
    const code = "import time; print('up'); time.sleep(60)"
    const error = await rejects(sandbox.runCode(code, { onStdout: () => sandbox.kill() }), sdk.TimeoutError)
    assert.match(error.message, /killed while the request was in progress/)
  })
)

feature('recovery', 'a template without an interpreter says so', { core: true }, () =>
  withSandbox({ template: 'base' }, async (sandbox) => {
    const error = await rejects(sandbox.runCode('1'), sdk.NotFoundError)
    assert.match(error.message, /no code interpreter.*code-interpreter-v1/)
  })
)

feature('recovery', 'variables go on after their memory was on disk', { core: true }, () =>
  withSandbox(async (sandbox) => {
    await sandbox.runCode('import numpy; x = numpy.arange(3)')
    await pauseToDisk(sandbox)
    const again = await Sandbox.connect(sandbox.sandboxId)
    assert.equal((await again.runCode('int(x.sum())')).text, '3')
  })
)

feature('fork', 'variables go on in a fork', () =>
  withSandbox(async (sandbox) => {
    has(sandbox, 'fork')
    await sandbox.runCode('x = [7]')
    const copies = await sandbox.fork({ count: 2, timeoutMs: 60_000 })
    try {
      for (const copy of copies) assert.equal((await copy.runCode('x.append(len(x)); x')).text, '[7, 1]')
      assert.equal((await sandbox.runCode('x')).text, '[7]')
    } finally {
      for (const copy of copies) await copy.kill()
    }
  })
)

feature('recovery', 'another client finds the state', { core: true }, () =>
  withSandbox(async (sandbox) => {
    await sandbox.runCode('x = 7')
    const again = await Sandbox.connect(sandbox.sandboxId)
    assert.equal((await again.runCode('x')).text, '7')
  })
)
