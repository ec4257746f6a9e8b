// Signed URLs, ports, tokens, network switches, pause and resume, unsupported features.
import http from 'node:http'
import https from 'node:https'
import { readFileSync } from 'node:fs'
import { Sandbox, assert, declares, feature, has, knows, plain, rejects, sdk, sleep, until, url, withSandbox } from './kit.mjs'

const [first, second] = process.env.SDK_OUTSIDE.split(',')
const outsidePort = process.env.SDK_OUTSIDE_PORT
const counter = 'i=0; while true; do i=$((i+1)); echo $i > /tmp/next; mv /tmp/next /tmp/count; sleep 0.05; done'

const routed = (sandbox, port) => ({ 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': `${port}` })
const form = (content) => ({
  method: 'POST',
  headers: { 'Content-Type': 'multipart/form-data; boundary=xyz' },
  body: `--xyz\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n${content}\r\n--xyz--\r\n`,
})
const state = async (sandbox) => (await Sandbox.getInfo(sandbox.sandboxId)).state

feature('urls', 'signed urls download and upload', { core: true }, () =>
  withSandbox({ secure: true }, async (sandbox) => {
    await sandbox.files.write('a b&c.txt', 'content')
    const download = await sandbox.downloadUrl('a b&c.txt', { useSignatureExpiration: 60_000 })
    assert.deepEqual(await plain(download).then((r) => [r.status, r.body]), [200, 'content'])
    const upload = await sandbox.uploadUrl('/tmp/up.txt')
    assert.equal((await plain(upload, form('uploaded'))).status, 200)
    assert.equal(await sandbox.files.read('/tmp/up.txt'), 'uploaded')
  })
)

feature('urls', 'expired and changed urls are refused', () =>
  withSandbox(async (sandbox) => {
    await sandbox.files.write('f', 'x')
    await sandbox.files.write('g', 'y')
    const address = new URL(await sandbox.downloadUrl('f', { useSignatureExpiration: 1 }))
    assert.equal((await plain(address)).status, 200)
    address.searchParams.set('path', 'g')
    assert.equal((await plain(address)).status, 401)
    address.searchParams.set('path', 'f')
    assert.equal((await plain(address, form('z'))).status, 401)
    await sleep(2100)
    const late = await plain(address)
    assert.equal(late.status, 401)
    assert.match(late.body, /signature is already expired/)
  })
)

feature('secure', 'a secure sandbox wants its token', { core: true }, () =>
  withSandbox({ secure: true }, async (sandbox) => {
    await sandbox.files.write('f', 'x')
    assert.equal((await plain(`${url}/health`, { headers: routed(sandbox, 49983) })).status, 204)
    assert.equal((await plain(`${url}/files?path=f`, { headers: routed(sandbox, 49983) })).status, 401)
  })
)

feature('secure', 'without public traffic ports want the traffic token', () =>
  withSandbox({ network: { allowPublicTraffic: false } }, async (sandbox) => {
    await serve(sandbox)
    assert.equal((await plain(url, { headers: routed(sandbox, 8000) })).status, 403)
    const headers = { ...routed(sandbox, 8000), 'e2b-traffic-access-token': sandbox.trafficAccessToken }
    await until(async () => (await plain(url, { headers })).status === 200)
  })
)

async function serve(sandbox) {
  await sandbox.files.write('/tmp/site/index.html', '<h1>inside</h1>')
  await sandbox.commands.run('python3 -m http.server 8000', { background: true, cwd: '/tmp/site', timeoutMs: 0 })
}

feature('ports', 'a port is reached by headers, host name and path', { core: true }, () =>
  withSandbox(async (sandbox) => {
    await serve(sandbox)
    const headers = routed(sandbox, 8000)
    await until(async () => (await plain(url, { headers })).status === 200)
    const host = sandbox.getHost(8000)
    assert(host.startsWith(`8000-${sandbox.sandboxId}.`))
    for (const [target, options] of [
      [`${url}/index.html`, { headers }],
      [`${url}/index.html`, { headers: { Host: host } }],
      [`${url}/sandbox/${sandbox.sandboxId}/8000/index.html`, {}],
    ]) {
      assert.equal((await plain(target, options)).body, '<h1>inside</h1>')
    }
    const closed = await plain(url, { headers: routed(sandbox, 8111) })
    assert.equal(closed.status, 502)
    assert.match(closed.body, /port is not open/)
  })
)

const headEcho = `
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        head = b"".join(iter(self.rfile.readline, b"\\r\\n"))
        self.wfile.write(b"HTTP/1.1 200 OK\\r\\nX-oDD-Name: 1\\r\\nconnection: close\\r\\n\\r\\n" + head)
socketserver.ThreadingTCPServer(("127.0.0.1", 8000), Echo).serve_forever()
`

// The names of an answer as they are on the wire, and its body.
function rawNames(target, headers) {
  return new Promise((resolve, reject) => {
    const { get } = new URL(target).protocol === 'https:' ? https : http
    get(target, { headers, agent: false }, (response) => {
      const parts = []
      response.on('data', (part) => parts.push(part))
      response.on('end', () => resolve([response.rawHeaders, Buffer.concat(parts).toString().split('\r\n')]))
    }).on('error', reject)
  })
}

feature('ports', 'header names arrive as they were written', () =>
  withSandbox(async (sandbox) => {
    await sandbox.files.write('/tmp/echo.py', headEcho)
    await sandbox.commands.run('python3 /tmp/echo.py', { background: true, timeoutMs: 0 })
    const headers = { Host: 'localhost', ...routed(sandbox, 8000), 'x-lower': '1', 'X-UPPER': '2' }
    await until(async () => (await plain(url, { headers })).status === 200)
    const [names, lines] = await rawNames(url, headers)
    assert(names.includes('X-oDD-Name'), names.join())
    for (const line of ['Host: localhost', 'x-lower: 1', 'X-UPPER: 2', `X-Forwarded-Proto: ${new URL(url).protocol.slice(0, -1)}`]) {
      assert(lines.includes(line), `${line} is not in\n${lines.join('\n')}`)
    }
  })
)

async function reaches(sandbox, address) {
  const target = `http://${address}:${outsidePort}/`
  const probe = `curl --noproxy '*' -s -o /dev/null -w '%{http_code}' --max-time 2 ${target} || true`
  return (await sandbox.commands.run(probe)).stdout === '204'
}

feature('network', 'without internet nothing is reached', () =>
  withSandbox({ allowInternetAccess: false }, async (sandbox) => {
    assert.equal(await reaches(sandbox, first), false)
    assert.equal((await sandbox.getInfo()).allowInternetAccess, false)
  })
)

feature('network', 'allowed addresses win and a policy is replaced while it runs', () =>
  withSandbox({ network: { denyOut: ({ allTraffic }) => [allTraffic], allowOut: [first] } }, async (sandbox) => {
    declares('SandboxNetworkSelector')
    assert.deepEqual([await reaches(sandbox, first), await reaches(sandbox, second)], [true, false])
    await sandbox.updateNetwork({ denyOut: [first] })
    assert.deepEqual([await reaches(sandbox, first), await reaches(sandbox, second)], [false, true])
    await sandbox.updateNetwork({ allowInternetAccess: false })
    assert.equal(await reaches(sandbox, second), false)
    assert.equal(await reaches(sandbox, process.env.SDK_HOST), false)
  })
)

feature('pause', 'memory and processes survive a pause', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const handle = await sandbox.commands.run(counter, { background: true, timeoutMs: 0 })
    handle.wait().catch(() => {})
    await sandbox.files.write('kept', 'yes')
    await (sandbox.pause ? sandbox.pause() : has(sandbox, 'betaPause')())
    assert.equal(await state(sandbox), 'paused')
    const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
    assert.equal(await state(sandbox), 'running')
    assert.equal(await again.files.read('kept'), 'yes')
    assert((await again.commands.list()).some((one) => one.pid === handle.pid))
    await until(() => again.files.exists('/tmp/count'))
    const count = async () => Number(await again.files.read('/tmp/count'))
    const before = await count()
    await until(async () => (await count()) > before)
  })
)

feature('pause', 'pausing twice is false and a paused sandbox is killed', async () => {
  const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
  assert.equal(await Sandbox.pause(sandbox.sandboxId), true)
  assert.equal(await sandbox.pause(), false)
  await rejects(sandbox.commands.run('true'), sdk.SandboxError)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), true)
  await rejects(Sandbox.connect(sandbox.sandboxId), sdk.NotFoundError)
})

feature('pause-files', 'files only keeps files and drops processes', () =>
  withSandbox(async (sandbox) => {
    declares('keepMemory')
    const handle = await sandbox.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
    handle.wait().catch(() => {})
    await sandbox.files.write('kept', 'yes')
    const bootId = '/proc/sys/kernel/random/boot_id'
    const before = await sandbox.files.read(bootId)
    assert.equal(await sandbox.pause({ keepMemory: false }), true)
    const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
    assert.notEqual(await again.files.read(bootId), before)
    assert.equal(await again.files.read('kept'), 'yes')
    assert(!(await again.commands.list()).some((one) => one.pid === handle.pid))
  })
)

feature('pause-files', 'a boot id belongs to one boot of one sandbox', () =>
  withSandbox((sandbox) =>
    withSandbox(async (other) => {
      declares('keepMemory')
      const bootId = '/proc/sys/kernel/random/boot_id'
      const first = await sandbox.files.read(bootId)
      assert(![readFileSync(bootId, 'utf8'), await other.files.read(bootId)].includes(first))
      await sandbox.pause()
      const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
      assert.equal((await again.commands.run(`cat ${bootId}`)).stdout, first)
      await again.pause({ keepMemory: false })
      const booted = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
      assert.notEqual(await booted.files.read(bootId), first)
    })
  )
)

feature('auto-pause', 'the end of the time pauses and traffic wakes', () =>
  withSandbox({ timeoutMs: 2000, lifecycle: { onTimeout: 'pause', autoResume: true } }, async (sandbox) => {
    await sandbox.files.write('kept', 'yes')
    await until(async () => (await state(sandbox)) === 'paused', 12)
    assert.equal((await sandbox.commands.run('cat kept')).stdout, 'yes')
    assert.equal(await state(sandbox), 'running')
  })
)

async function refused(what, promise) {
  const error = await rejects(promise)
  assert.match(error.message, /not supported by this server/, what)
}

feature('missing', 'options of create say so', async () => {
  const options = {
    mcp: { mcp: { exa: { apiKey: 'none' } } },
    iam: { iam: { tokens: { a: { audience: 'b', tokenType: 'JWT-SVID' } } } },
    allowOut: { network: { allowOut: ['*.example.com'] } },
    rules: { network: { rules: { 'example.com': [{ transform: { headers: { a: 'b' } } }] } } },
    egressProxy: { network: { egressProxy: { address: '192.0.2.1:1080' } } },
    dnsServers: { network: { dnsServers: ['192.0.2.1'] } },
    httpsPorts: { network: { httpsPorts: [443] } },
  }
  for (const [name, option] of Object.entries(options)) {
    // A version drops fields that it does not know.
    if (knows(new RegExp(`\\b${name}\\?:`))) await refused(name, Sandbox.create(option))
  }
})

feature('missing', 'secrets say so', async () => {
  await refused('secrets', has(sdk.Secret, 'create')('s', 'x'))
})

feature('missing', 'templates of E2B say so', async () => {
  for (const name of ['devcontainer', 'mcp-gateway']) await refused(name, Sandbox.create(name))
})
