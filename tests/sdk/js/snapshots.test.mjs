// Snapshots and forks: what E2B's own tests expect, and that processes go on.
import http from 'node:http'
import { Sandbox, asked, assert, declares, feature, has, pages, pauseToDisk, plain, rejects, sdk, unique, until, withSandbox } from './kit.mjs'

const counter = 'i=0; while true; do i=$((i+1)); echo $i > /tmp/next; mv /tmp/next /tmp/count; sleep 0.05; done'
const count = async (sandbox) => Number(await sandbox.files.read('/tmp/count'))
const ids = async (paginator) => (await pages(paginator)).flat().map((one) => one.snapshotId)

async function counting(sandbox) {
  const handle = await sandbox.commands.run(counter, { background: true, timeoutMs: 0 })
  handle.wait().catch(() => {})
  await until(() => sandbox.files.exists('/tmp/count'))
  return handle
}

async function goesOn(sandbox, handle) {
  assert((await sandbox.commands.list()).some((one) => one.pid === handle.pid))
  const before = await count(sandbox)
  await until(async () => (await count(sandbox)) > before)
}

// A snapshot for the duration of a function.
async function withSnapshot(sandbox, options, body) {
  const taken = await has(sandbox, 'createSnapshot')(options)
  try {
    return await body(taken)
  } finally {
    await Sandbox.deleteSnapshot(taken.snapshotId)
  }
}

feature('snapshots', 'a snapshot is made and deleted once', () =>
  withSandbox(async (sandbox) => {
    const taken = await has(sandbox, 'createSnapshot')()
    assert(taken.snapshotId.length > 0)
    assert.equal(await sandbox.isRunning(), true)
    assert.equal(await Sandbox.deleteSnapshot(taken.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(taken.snapshotId), false)
  })
)

feature('snapshots', 'sandboxes from a snapshot have its files and processes', { core: true }, () =>
  withSandbox(async (sandbox) => {
    await sandbox.files.write('a/b/f.txt', 'original')
    const handle = await counting(sandbox)
    await withSnapshot(sandbox, {}, ({ snapshotId }) =>
      withSandbox({ template: snapshotId }, (one) =>
        withSandbox({ template: snapshotId }, async (two) => {
          assert.equal(new Set([sandbox.sandboxId, one.sandboxId, two.sandboxId]).size, 3)
          await one.files.write('a/b/f.txt', 'changed')
          assert.equal(await two.files.read('a/b/f.txt'), 'original')
          assert.equal(await sandbox.files.read('a/b/f.txt'), 'original')
          for (const each of [sandbox, one, two]) await goesOn(each, handle)
        })
      )
    )
  })
)

feature('snapshots', 'snapshots are listed for all and for one sandbox', () =>
  withSandbox((sandbox) =>
    withSnapshot(sandbox, {}, ({ snapshotId }) =>
      withSnapshot(sandbox, {}, async (second) => {
        assert.equal(Sandbox.listSnapshots().hasNext, true)
        assert((await ids(Sandbox.listSnapshots())).includes(snapshotId))
        assert.deepEqual(await ids(sandbox.listSnapshots()), [second.snapshotId, snapshotId])
        const one = await pages(Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId, limit: 1 }))
        assert.deepEqual(one.map((page) => page.length), [1, 1])
      })
    )
  )
)

feature('snapshots', 'a name finds the latest', () =>
  withSandbox(async (sandbox) => {
    declares(/interface SnapshotInfo \{[^}]*names: string/)
    const name = unique('snap')
    await sandbox.files.write('f', 'one')
    await withSnapshot(sandbox, { name }, async (taken) => {
      assert(taken.names.some((one) => one.includes(name)))
      await sandbox.files.write('f', 'two')
      assert.equal((await sandbox.createSnapshot({ name })).snapshotId, taken.snapshotId)
      await withSandbox({ template: name }, async (copy) => assert.equal(await copy.files.read('f'), 'two'))
    })
    await rejects(Sandbox.create(name), sdk.SandboxError)
  })
)

feature('snapshots', 'of what is not there', async () => {
  const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
  has(sandbox, 'createSnapshot')
  await sandbox.pause()
  assert.match((await rejects(sandbox.createSnapshot(), sdk.SandboxError)).message, /paused/)
  await sandbox.kill()
  await rejects(sandbox.createSnapshot(), sdk.SandboxNotFoundError ?? sdk.NotFoundError)
})

feature('fork', 'copies go on from the same moment and part', { core: true }, () =>
  withSandbox({ metadata: { case: 'fork' } }, async (sandbox) => {
    has(sandbox, 'fork')
    const handle = await counting(sandbox)
    const copies = await sandbox.fork({ count: 2, timeoutMs: 60_000 })
    try {
      assert.equal(new Set([sandbox, ...copies].map((one) => one.sandboxId)).size, 3)
      for (const copy of copies) {
        await goesOn(copy, handle)
        await copy.files.write('only-in-copy', copy.sandboxId)
        assert.equal((await copy.getInfo()).metadata.case, 'fork')
      }
      assert.equal(await sandbox.files.exists('only-in-copy'), false)
      assert.equal(await copies[0].files.read('only-in-copy'), copies[0].sandboxId)
      await goesOn(sandbox, handle)
    } finally {
      for (const copy of copies) await copy.kill()
    }
  })
)

// A program in each of the ways in which programs keep something: a Node server, a transaction, a terminal session.
const node = "let asked = 0; require('http').createServer((_, reply) => reply.end(String(++asked))).listen(3000)"
const transaction = `import os, sqlite3, time
database = sqlite3.connect('/home/user/t.db', isolation_level=None)
database.execute('create table numbers (number)')
database.execute('begin immediate')
database.execute('insert into numbers values (1)')
open('/tmp/begun', 'w').close()
while not os.path.exists('/tmp/commit'):
    time.sleep(0.05)
database.execute('commit')
open('/tmp/committed', 'w').close()
`
const rows = `python3 -c "import sqlite3; print(list(sqlite3.connect('/home/user/t.db').execute('select * from numbers')))"`

async function working(sandbox) {
  await sandbox.files.write('/tmp/transaction.py', transaction)
  for (const command of ['python3 /tmp/transaction.py', `node -e "${node}"`]) {
    const handle = await sandbox.commands.run(command, { background: true, timeoutMs: 0 })
    handle.wait().catch(() => {})
  }
  await sandbox.commands.run('tmux new-session -d -s work && tmux send-keys -t work KEPT=in-the-shell Enter')
  await until(() => sandbox.files.exists('/tmp/begun'))
  await until(async () => (await asked(sandbox, 3000)) === '1')
}

async function worksOn(sandbox) {
  await until(async () => (await asked(sandbox, 3000)) === '2')
  await sandbox.commands.run("tmux send-keys -t work 'echo $KEPT > /tmp/kept' Enter; touch /tmp/commit")
  await until(() => sandbox.files.exists('/tmp/committed'))
  await until(() => sandbox.files.exists('/tmp/kept'))
  assert.equal(await sandbox.files.read('/tmp/kept'), 'in-the-shell\n')
  assert.equal((await sandbox.commands.run(rows)).stdout, '[(1,)]\n')
}

feature('pause', 'what runs goes on after its memory was on disk', { core: true }, () =>
  withSandbox(async (sandbox) => {
    await working(sandbox)
    const handle = await counting(sandbox)
    await pauseToDisk(sandbox)
    const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
    await goesOn(again, handle)
    await worksOn(again)
  })
)

feature('snapshots', 'what runs goes on in a sandbox from a snapshot', () =>
  withSandbox(async (sandbox) => {
    has(sandbox, 'createSnapshot')
    await working(sandbox)
    await withSnapshot(sandbox, {}, ({ snapshotId }) => withSandbox({ template: snapshotId }, worksOn))
    assert.equal((await sandbox.commands.run(rows)).stdout, '[]\n')
  })
)

// A connection out of the sandbox, and what comes of it.
const caller = `import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
open('/tmp/connected', 'w').close()
try:
    print('read', connection.recv(100), flush=True)
except OSError as error:
    print('failed', error.errno, flush=True)
`

feature('snapshots', 'connections to the outside are closed in a sandbox from one', () =>
  withSandbox(async (sandbox) => {
    has(sandbox, 'createSnapshot')
    await sandbox.files.write('/tmp/caller.py', caller)
    const to = `${process.env.SDK_OUTSIDE.split(',')[0]} ${process.env.SDK_OUTSIDE_PORT}`
    const handle = await sandbox.commands.run(`python3 /tmp/caller.py ${to} > /tmp/said`, { background: true, timeoutMs: 0 })
    handle.wait().catch(() => {})
    await until(() => sandbox.files.exists('/tmp/connected'))
    await withSnapshot(sandbox, {}, ({ snapshotId }) =>
      withSandbox({ template: snapshotId }, async (copy) => {
        assert.match(await until(() => copy.files.read('/tmp/said')), /^(failed |read b'')/)
        assert.equal(await sandbox.files.read('/tmp/said'), '')
      })
    )
  })
)

feature('snapshots', 'a tag keeps an earlier one', () =>
  withSandbox(async (sandbox) => {
    declares(/interface SnapshotInfo \{[^}]*names: string/)
    const name = unique('snap')
    await sandbox.files.write('f', 'one')
    await withSnapshot(sandbox, { name: `${name}:v1` }, async ({ snapshotId }) => {
      assert.equal(snapshotId, `${name}:v1`)
      await sandbox.files.write('f', 'two')
      await sandbox.createSnapshot({ name })
      for (const [reference, content] of [[snapshotId, 'one'], [name, 'two']]) {
        await withSandbox({ template: reference }, async (copy) => assert.equal(await copy.files.read('f'), content))
      }
    })
  })
)

const limit = 'you have reached the maximum number of concurrent sandboxes (3)'

// The URL of an API whose forks have one copy fewer than asked for, and in its place what a server says at a team's limit. The cases
// run side by side in one team, whose own limit would stop the others too.
async function withOneCopyFewer(body) {
  const relay = http.createServer(async (request, response) => {
    const parts = []
    for await (const part of request) parts.push(part)
    const wanted = JSON.parse(Buffer.concat(parts))
    const headers = { 'x-api-key': request.headers['x-api-key'], 'content-type': 'application/json' }
    const made = await plain(process.env.E2B_API_URL + request.url, {
      method: 'POST',
      headers,
      body: JSON.stringify({ ...wanted, count: wanted.count - 1 }),
    })
    const refused = { error: { code: 429, message: limit } }
    response.writeHead(made.status, { 'content-type': 'application/json' })
    response.end(made.status === 201 ? JSON.stringify([...JSON.parse(made.body), refused]) : made.body)
  })
  await new Promise((resolve) => relay.listen(0, '127.0.0.1', resolve))
  try {
    return await body(`http://127.0.0.1:${relay.address().port}`)
  } finally {
    relay.closeAllConnections()
    relay.close()
  }
}

feature('fork', 'a copy that cannot be made is an error beside the others', { core: true }, () =>
  withSandbox((sandbox) =>
    withOneCopyFewer(async (apiUrl) => {
      has(sandbox, 'fork')
      await sandbox.files.write('inherited', 'yes')
      const copies = await Sandbox.fork(sandbox.sandboxId, { count: 3, timeoutMs: 60_000, apiUrl })
      const refused = copies.pop()
      try {
        assert(refused instanceof sdk.RateLimitError && refused.message.includes(limit), `${refused}`)
        assert.equal(copies.length, 2)
        for (const copy of copies) assert.equal(await copy.files.read('inherited'), 'yes')
      } finally {
        for (const copy of copies) await Sandbox.kill(copy.sandboxId)
      }
    })
  )
)

feature('fork', 'a fork is no session', () => {
  const metadata = { 'isopod.session': unique('session') }
  return withSandbox({ metadata }, async (sandbox) => {
    const [copy] = await has(sandbox, 'fork')()
    try {
      assert.equal('isopod.session' in (await copy.getInfo()).metadata, false)
      await withSandbox({ metadata }, (same) => assert.equal(same.sandboxId, sandbox.sandboxId))
    } finally {
      await copy.kill()
    }
  })
})

feature('fork', 'by id and errors', async () => {
  const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
  has(sandbox, 'fork')
  const [copy] = await Sandbox.fork(sandbox.sandboxId)
  assert.notEqual(copy.sandboxId, sandbox.sandboxId)
  await copy.kill()
  await rejects(sandbox.fork({ count: 0 }))
  await sandbox.pause()
  assert.match((await rejects(sandbox.fork(), sdk.SandboxError)).message, /paused/)
  await sandbox.kill()
  await rejects(sandbox.fork(), sdk.SandboxNotFoundError ?? sdk.NotFoundError)
})
