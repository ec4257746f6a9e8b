// Create, kill, info, timeouts, connect, sessions, errors, metrics.
import {
  Sandbox,
  assert,
  cannot,
  declares,
  feature,
  has,
  pages,
  rejects,
  sdk,
  unique,
  until,
  withSandbox,
} from './kit.mjs'

const MISSING = 'i' + '0'.repeat(20)

feature('create', 'created without a template it runs and is killed once', { core: true }, async () => {
  const sandbox = await Sandbox.create()
  assert.equal((await sandbox.commands.run('echo Hello')).stdout, 'Hello\n')
  assert.equal(await sandbox.isRunning(), true)
  assert.notEqual(await sandbox.kill(), false)
  assert.equal(await sandbox.isRunning(), false)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
})

feature('create', 'environment and metadata of the create hold', { core: true }, () =>
  withSandbox({ template: 'base', envs: { GREETING: 'hi there' }, metadata: { who: 'me ü' } }, async (sandbox) => {
    assert.equal((await sandbox.commands.run('echo $GREETING')).stdout, 'hi there\n')
    assert.deepEqual((await sandbox.getInfo()).metadata, { who: 'me ü' })
  })
)

feature('create', 'twenty created at once are all different', async () => {
  const made = await Promise.all(Array.from({ length: 20 }, () => Sandbox.create({ timeoutMs: 60_000 })))
  assert.equal(new Set(made.map((sandbox) => sandbox.sandboxId)).size, 20)
  const killed = await Promise.all(made.map((sandbox) => Sandbox.kill(sandbox.sandboxId)))
  assert.deepEqual(killed, Array(20).fill(true))
})

feature('info', 'info tells what was asked for', { core: true }, () =>
  withSandbox({ template: 'base', timeoutMs: 90_000, metadata: { a: 'b' } }, async (sandbox) => {
    const info = await sandbox.getInfo()
    assert.equal(info.sandboxId, sandbox.sandboxId)
    assert.deepEqual([info.templateId, info.name, info.state], ['base', 'base', 'running'])
    const seconds = (info.endAt - info.startedAt) / 1000
    assert(seconds >= 88 && seconds <= 92, `${seconds}`)
    assert(info.cpuCount >= 1 && info.memoryMB >= 128 && info.envdVersion)
  })
)

feature('info', 'info tells the lifecycle and the network', () =>
  withSandbox({ lifecycle: { onTimeout: 'pause' }, network: { denyOut: ['192.0.2.0/24'] } }, async (sandbox) => {
    const info = await sandbox.getInfo()
    assert.equal(info.lifecycle.onTimeout, 'pause')
    assert.deepEqual(info.network.denyOut, ['192.0.2.0/24'])
  })
)

feature('timeouts', 'a sandbox ends when its time is over', { core: true }, async () => {
  const start = Date.now()
  const sandbox = await Sandbox.create({ timeoutMs: 2000 })
  // The upper bound is for a machine that is busy with all the other cases.
  await until(async () => !(await sandbox.isRunning()), 10)
  assert(Date.now() - start >= 1500)
  await rejects(Sandbox.getInfo(sandbox.sandboxId), sdk.NotFoundError)
})

feature('timeouts', 'setTimeout goes both ways', { core: true }, () =>
  withSandbox({ timeoutMs: 60_000 }, async (sandbox) => {
    await sandbox.setTimeout(600_000)
    assert(Math.abs((await secondsLeft(sandbox)) - 600) < 10)
    await Sandbox.setTimeout(sandbox.sandboxId, 30_000)
    assert(Math.abs((await secondsLeft(sandbox)) - 30) < 5)
    await sandbox.setTimeout(1000)
    await until(async () => !(await sandbox.isRunning()), 12)
  })
)

feature('timeouts', 'connect extends and never shortens', () =>
  withSandbox({ timeoutMs: 100_000 }, async (sandbox) => {
    const before = (await sandbox.getInfo()).endAt
    await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
    assert.deepEqual((await sandbox.getInfo()).endAt, before)
    await sandbox.connect({ timeoutMs: 400_000 })
    assert(Math.abs((await secondsLeft(sandbox)) - 400) < 10)
  })
)

async function secondsLeft(sandbox) {
  return ((await sandbox.getInfo()).endAt - Date.now()) / 1000
}

feature('connect', 'a second client sees the same sandbox', { core: true }, () =>
  withSandbox(async (first) => {
    await first.files.write('shared.txt', 'one')
    const second = await Sandbox.connect(first.sandboxId)
    assert.equal(second.sandboxId, first.sandboxId)
    assert.equal(await second.files.read('shared.txt'), 'one')
  })
)

feature('session', 'twenty racing callers get one sandbox', async () => {
  const metadata = { 'isopod.session': unique('session') }
  const made = await Promise.all(Array.from({ length: 20 }, () => Sandbox.create({ metadata, timeoutMs: 60_000 })))
  assert.equal(new Set(made.map((sandbox) => sandbox.sandboxId)).size, 1)
  await made[0].files.write('x', '1')
  assert.equal(await made[19].files.read('x'), '1')
  await made[0].pause()
  const again = await Sandbox.create({ metadata, timeoutMs: 60_000 })
  assert.equal(again.sandboxId, made[0].sandboxId)
  await rejects(Sandbox.create({ metadata, allowInternetAccess: false }), sdk.SandboxError)
  await again.kill()
})

feature('errors', 'a wrong key is an authentication error', { core: true }, async () => {
  await rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), sdk.AuthenticationError)
})

feature('errors', 'what does not exist is not found', { core: true }, async () => {
  assert.equal(await Sandbox.kill(MISSING), false)
  await rejects(Sandbox.getInfo(MISSING), sdk.NotFoundError)
  await rejects(Sandbox.connect(MISSING), sdk.NotFoundError)
  await rejects(Sandbox.setTimeout(MISSING, 10_000), sdk.NotFoundError)
})

feature('errors', 'everything on a missing sandbox is sandbox not found', async () => {
  has(Sandbox, 'updateNetwork')
  await rejects(Sandbox.pause(MISSING), sdk.SandboxNotFoundError)
  await rejects(Sandbox.getMetrics(MISSING), sdk.SandboxNotFoundError)
  await rejects(Sandbox.updateNetwork(MISSING, { denyOut: ['192.0.2.1'] }), sdk.SandboxNotFoundError)
})

feature('create', 'a kernel feature that the operator allows is there on request', { core: true }, async () => {
  const namespace = 'unshare --user --map-root-user id -u'
  await withSandbox({ metadata: { 'isopod.allow': 'userns' } }, async (sandbox) =>
    assert.equal((await sandbox.commands.run(namespace)).stdout, '0\n')
  )
  await withSandbox(async (sandbox) => rejects(sandbox.commands.run(namespace), sdk.CommandExitError))
})

feature('errors', 'a kernel feature that the operator does not allow is refused', { core: true }, async () => {
  const error = await rejects(Sandbox.create({ metadata: { 'isopod.allow': 'fuse' } }), sdk.SandboxError)
  assert.match(error.message, /403.*kernel feature fuse/)
})

feature('errors', 'an unknown template is named', async () => {
  const error = await rejects(Sandbox.create('no-such-template'), sdk.SandboxError)
  assert.match(error.message, /404.*no-such-template/)
})

feature('errors', 'a killed sandbox says so to its client', { core: true }, async () => {
  const sandbox = await Sandbox.create()
  await sandbox.kill()
  await rejects(sandbox.commands.run('true'), sdk.SandboxNotFoundError)
  await rejects(sandbox.files.read('x'), sdk.SandboxError)
})

feature('errors', "a sandbox killed under a command is told in the SDK's own words", async () => {
  cannot(['2.19.5'], 'it says the same of a killed sandbox and of a time-out')
  for (const end of [(sandbox) => sandbox.kill(), (sandbox) => sandbox.setTimeout(0)]) {
    const sandbox = await Sandbox.create()
    const output = []
    const onStdout = (text) => void output.push(text)
    const handle = await sandbox.commands.run('echo up; sleep 60', { background: true, onStdout })
    const ended = rejects(handle.wait(), sdk.TimeoutError)
    await until(() => output.length > 0)
    await end(sandbox)
    assert.match((await ended).message, /killed or reached its end of life/)
    assert.deepEqual([output, handle.stdout], [['up\n'], 'up\n'], 'what was printed before came once, and stays')
  }
})

feature('errors', 'a sandbox killed under a terminal is told too', async () => {
  cannot(['2.19.5'], 'it says the same of a killed sandbox and of a time-out')
  const sandbox = await Sandbox.create()
  const handle = await sandbox.pty.create({ cols: 80, rows: 24, onData: () => {} })
  const ended = rejects(handle.wait(), sdk.TimeoutError)
  await sandbox.kill()
  assert.match((await ended).message, /killed or reached its end of life/)
})

feature('errors', 'a sandbox killed under a watch is told too', async () => {
  cannot(['2.19.5'], 'it says the same of a killed sandbox and of a time-out')
  const sandbox = await Sandbox.create()
  const ended = []
  await sandbox.files.watchDir('/tmp', () => {}, { timeoutMs: 0, onExit: (error) => void ended.push(error) })
  await sandbox.kill()
  await until(() => ended.length === 1)
  assert(ended[0] instanceof sdk.TimeoutError, `${ended[0]}`)
  assert.match(ended[0].message, /killed or reached its end of life/)
})

// No version checks on the sandbox once a stream has begun: the transport's own error comes through, and the next call says why.
feature('errors', 'a sandbox killed under a download never gives a short file', { core: true }, async () => {
  const sandbox = await Sandbox.create()
  await sandbox.commands.run('truncate -s 1G big')
  const stream = await sandbox.files.read('big', { format: 'stream' })
  let received = 0
  await rejects(
    (async () => {
      for await (const part of stream) {
        if (received === 0) await sandbox.kill()
        received += part.length
      }
    })()
  )
  assert(received > 0 && received < 2 ** 30, `${received}`)
  const { message } = await rejects(sandbox.files.read('big', { format: 'stream' }), sdk.TimeoutError)
  assert.match(message, /The sandbox was not found/)
})

feature('errors', "a sandbox killed under an upload is told in the SDK's own words", { core: true }, async () => {
  const sandbox = await Sandbox.create()
  const [size, killedAt, chunk] = [32 << 20, 8 << 20, new Uint8Array(64 << 10)]
  let given = 0
  const stream = new ReadableStream({
    async pull(controller) {
      if (given === killedAt) await sandbox.kill()
      if (given === size) return controller.close()
      controller.enqueue(chunk)
      given += chunk.length
    },
  })
  const { message } = await rejects(sandbox.files.write('big', stream), sdk.TimeoutError)
  assert.match(message, /killed or reached its end of life|The sandbox was not found/)
})

feature('list', 'a new sandbox is in the list until it is killed', { core: true }, async () => {
  const metadata = { 'a key & more': `${unique()} b=c&d%20 ü+/?` }
  await withSandbox({ metadata }, async (sandbox) => {
    const found = (await pages(Sandbox.list({ query: { metadata } }))).flat()
    assert.deepEqual(found.map((item) => [item.sandboxId, item.state]), [[sandbox.sandboxId, 'running']])
    assert.deepEqual(found[0].metadata, metadata)
  })
  assert.deepEqual((await pages(Sandbox.list({ query: { metadata } }))).flat(), [])
})

feature('list', 'pages hold every sandbox once, newest first', { core: true }, async () => {
  const metadata = { mark: unique() }
  const made = []
  for (let i = 0; i < 5; i++) made.push(await Sandbox.create({ metadata, timeoutMs: 60_000 }))
  const found = await pages(Sandbox.list({ query: { metadata }, limit: 2 }))
  assert.deepEqual(found.map((page) => page.length), [2, 2, 1])
  assert.deepEqual(found.flat().map((item) => item.sandboxId), made.map((sandbox) => sandbox.sandboxId).reverse())
  await Promise.all(made.map((sandbox) => sandbox.kill()))
})

feature('list', 'order, start time, template and state filter', async () => {
  const metadata = { mark: unique() }
  declares('SandboxListOrder')
  const ids = async (opts) => (await pages(Sandbox.list(opts))).flat().map((item) => item.sandboxId)
  await withSandbox({ metadata }, (first) =>
    withSandbox({ metadata }, async (second) => {
      assert.deepEqual(await ids({ query: { metadata }, order: 'asc' }), [first.sandboxId, second.sandboxId])
      const startedAfter = (await second.getInfo()).startedAt
      assert((await ids({ query: { metadata, startedAfter } })).includes(second.sandboxId))
      assert.deepEqual(await ids({ query: { metadata, template: 'other' } }), [])
      await second.pause()
      assert.deepEqual(await ids({ query: { metadata, state: ['running'] } }), [first.sandboxId])
      assert.deepEqual(await ids({ query: { metadata, state: ['paused'] } }), [second.sandboxId])
      assert.equal((await ids({ query: { metadata, state: ['running', 'paused'] } })).length, 2)
    })
  )
})

feature('metrics', 'metrics are real numbers', () =>
  withSandbox(async (sandbox) => {
    await sandbox.commands.run("timeout 20 python3 -c 'while True: pass'", { background: true })
    const busy = async () => {
      const found = await sandbox.getMetrics()
      return found.some((metric) => metric.cpuUsedPct > 1) && found
    }
    const last = (await until(busy)).at(-1)
    const info = await sandbox.getInfo()
    assert.equal(last.cpuCount, info.cpuCount)
    assert.equal(last.memTotal, info.memoryMB * 1024 * 1024)
    assert(last.memUsed > 0 && last.memUsed < last.memTotal && last.diskTotal > last.diskUsed)
  })
)

feature('metrics', 'metrics of a time to come are none', () =>
  withSandbox(async (sandbox) => {
    cannot(['2.19.5'], 'it does not send the start')
    await until(async () => (await sandbox.getMetrics()).length > 0)
    assert.deepEqual(await sandbox.getMetrics({ start: new Date(Date.now() + 3_600_000) }), [])
  })
)

feature('metrics', 'metrics can be asked for', { core: true }, () =>
  withSandbox(async (sandbox) => assert(Array.isArray(await has(sandbox, 'getMetrics')())))
)
