// Files: contents, streams, gzip, metadata, entries, watching.
import { randomBytes } from 'node:crypto'
import { assert, declares, feature, rejects, sdk, until, withSandbox } from './kit.mjs'

feature('files', 'text and bytes are written and read back', { core: true }, () =>
  withSandbox(async ({ files }) => {
    const info = await files.write('notes/ä b.txt', 'hällo\n')
    assert.deepEqual([info.path, info.name], ['/home/user/notes/ä b.txt', 'ä b.txt'])
    assert.equal(await files.read('notes/ä b.txt'), 'hällo\n')
    await files.write('empty', '')
    assert.equal(await files.read('empty'), '')
    const content = randomBytes(2_000_000)
    await files.write('/tmp/b', content.buffer.slice(content.byteOffset, content.byteOffset + content.length))
    assert(content.equals(Buffer.from(await files.read('/tmp/b', { format: 'bytes' }))))
    assert.equal((await files.read('/tmp/b', { format: 'blob' })).size, 2_000_000)
    await files.write('/tmp/blob', new Blob(['blob']))
    assert.equal(await files.read('/tmp/blob'), 'blob')
  })
)

feature('files', 'many files are written at once', { core: true }, () =>
  withSandbox(async ({ files }) => {
    const wanted = Array.from({ length: 20 }, (_, i) => ({ path: `/tmp/many/${i}/f`, data: `content ${i}` }))
    const infos = await files.write(wanted)
    assert.deepEqual(infos.map((info) => info.path), wanted.map((entry) => entry.path))
    for (const { path, data } of wanted) assert.equal(await files.read(path), data)
  })
)

feature('files', 'what cannot be read or written is refused', { core: true }, () =>
  withSandbox(async ({ files }) => {
    await rejects(files.read('/no/such/file'), sdk.NotFoundError)
    await rejects(files.read('/tmp'), sdk.InvalidArgumentError)
    await rejects(files.write('/tmp', 'x'), sdk.InvalidArgumentError)
    await files.write('mine', 'secret', { user: 'root' })
    assert.equal(await files.read('/root/mine', { user: 'root' }), 'secret')
    await rejects(files.read('mine'), sdk.NotFoundError)
  })
)

feature('files', 'files of root are written and read by anyone', { core: true }, () =>
  withSandbox(async ({ files, commands }) => {
    await commands.run('sudo mkdir -m 700 of-root && echo old | sudo tee of-root/f && sudo chmod 600 of-root/f')
    assert.equal(await files.read('of-root/f'), 'old\n')
    await files.write('of-root/f', 'new')
    await files.write('of-root/below/g', 'x')
    const owners = await commands.run('sudo stat -c %U of-root of-root/f of-root/below of-root/below/g')
    assert.equal(owners.stdout, 'root\nuser\nuser\nuser\n')
    assert.deepEqual((await files.list('of-root')).map((entry) => entry.name).sort(), ['below', 'f'])
    await files.rename('of-root/f', 'of-root/below/f')
    assert.equal(await files.read('of-root/below/f'), 'new')
    await files.remove('of-root')
    assert.equal(await files.exists('of-root'), false)
  })
)

feature('streams', 'files are read and written as streams', () =>
  withSandbox(async ({ files }) => {
    const content = randomBytes(3_000_000)
    await files.write('/tmp/s', new Blob([content]).stream())
    assert(content.equals(await gathered(await files.read('/tmp/s', { format: 'stream' }))))
  })
)

feature('streams', 'gzip goes both ways', () =>
  withSandbox(async ({ files, commands }) => {
    const text = 'compressible '.repeat(50_000)
    await files.write('/tmp/z', text, { gzip: true })
    assert.equal((await commands.run('stat -c %s /tmp/z')).stdout.trim(), `${text.length}`)
    assert.equal(await files.read('/tmp/z', { gzip: true }), text)
    await files.write('/tmp/o', 'octets', { useOctetStream: true })
    assert.equal(await files.read('/tmp/o'), 'octets')
  })
)

async function gathered(stream) {
  const parts = []
  for await (const part of stream) parts.push(Buffer.from(part))
  return Buffer.concat(parts)
}

feature('metadata', 'metadata of a file is kept', () =>
  withSandbox(async ({ files }) => {
    declares(/interface FilesystemWriteOpts [^}]*metadata/)
    const written = await files.write('/tmp/m', 'x', { metadata: { Author: 'me', kind: 'note' } })
    assert.deepEqual(written.metadata, { author: 'me', kind: 'note' })
    assert.deepEqual((await files.getInfo('/tmp/m')).metadata, { author: 'me', kind: 'note' })
    const [listed] = (await files.list('/tmp')).filter((entry) => entry.name === 'm')
    assert.deepEqual(listed.metadata, { author: 'me', kind: 'note' })
  })
)

feature('entries', 'entries are listed, moved and removed', { core: true }, () =>
  withSandbox(async ({ files }) => {
    assert.equal(await files.makeDir('/tmp/t/1/2'), true)
    assert.equal(await files.makeDir('/tmp/t/1/2'), false)
    await files.write('/tmp/t/1/2/f', 'abc')
    const names = async (depth) => (await files.list('/tmp/t', { depth })).map((entry) => entry.path)
    assert.deepEqual(await names(1), ['/tmp/t/1'])
    assert.deepEqual(await names(3), ['/tmp/t/1', '/tmp/t/1/2', '/tmp/t/1/2/f'])
    assert.equal((await files.rename('/tmp/t/1/2/f', '/tmp/t/g')).path, '/tmp/t/g')
    assert.equal(await files.exists('/tmp/t/1/2/f'), false)
    assert.equal(await files.exists('/tmp/t/g'), true)
    await files.remove('/tmp/t')
    assert.equal(await files.exists('/tmp/t'), false)
    await rejects(files.list('/tmp/t'), sdk.NotFoundError)
    await rejects(files.rename('/tmp/none', '/tmp/x'), sdk.NotFoundError)
  })
)

feature('entries', 'a directory has a size', () =>
  withSandbox(async ({ files }) => {
    declares(/size: number/)
    await files.write('/tmp/d/a.txt', 'abc')
    await files.makeDir('/tmp/d/sub')
    const listed = await files.list('/tmp/d')
    // On btrfs an empty one has no bytes.
    assert.deepEqual(Object.fromEntries(listed.map(({ name, size }) => [name, size])), { 'a.txt': 3, sub: 4096 })
  })
)

feature('entries', 'info of files and links', () =>
  withSandbox(async ({ files, commands }) => {
    await files.write('/tmp/f', '12345')
    await commands.run('chmod 640 /tmp/f; ln -s /tmp/f /tmp/link')
    const info = await files.getInfo('/tmp/f')
    assert.deepEqual([info.name, info.type, info.path, info.size], ['f', 'file', '/tmp/f', 5])
    assert.deepEqual([info.mode, info.permissions, info.owner], [0o640, '-rw-r-----', 'user'])
    assert(info.modifiedTime > new Date('2024-01-01'))
    assert.equal((await files.getInfo('/tmp/link')).symlinkTarget, '/tmp/f')
    await rejects(files.getInfo('/tmp/none'), sdk.NotFoundError)
  })
)

feature('watch', 'every kind of change is seen', { core: true }, () =>
  withSandbox(async ({ files, commands }) => {
    await files.makeDir('/tmp/w')
    const seen = []
    const watch = await files.watchDir('/tmp/w', (event) => void seen.push(`${event.type} ${event.name}`))
    await commands.run('cd /tmp/w; echo a > f; chmod 600 f; mv f g; rm g')
    for (const event of ['create f', 'write f', 'chmod f', 'rename f', 'create g', 'remove g']) {
      await until(() => seen.includes(event), 10)
    }
    await watch.stop()
  })
)

feature('watch', 'a new file gives each event once', () =>
  withSandbox(async ({ files, commands }) => {
    await commands.run('sudo mkdir -m 700 /tmp/w')
    const seen = []
    const watch = await files.watchDir('/tmp/w', (event) => void seen.push(`${event.type} ${event.name}`))
    for (let round = 0; round < 20; round++) await files.write(`/tmp/w/${round}`, 'text')
    await until(() => seen.length >= 60, 10)
    const expected = Array.from({ length: 20 }, (_, i) => [`create ${i}`, `chmod ${i}`, `write ${i}`]).flat()
    assert.deepEqual(seen, expected)
    await watch.stop()
  })
)

feature('watch', 'a recursive watch sees below, with entries', () =>
  withSandbox(async ({ files, commands }) => {
    declares('includeEntry')
    await files.makeDir('/tmp/w/old')
    const seen = []
    const watch = await files.watchDir('/tmp/w', (event) => void seen.push(event), {
      recursive: true,
      includeEntry: true,
    })
    await commands.run('echo x > /tmp/w/old/f; mkdir /tmp/w/new')
    await until(() => seen.some((event) => event.name === 'new'))
    await commands.run('echo x > /tmp/w/new/g')
    const found = await until(() => seen.find((event) => event.name === 'new/g' && event.entry))
    assert.equal(found.entry.path, '/tmp/w/new/g')
    await watch.stop()
  })
)

feature('watch', 'a watch ends at its timeout and what cannot be watched is refused', () =>
  withSandbox(async ({ files }) => {
    const ended = []
    await files.watchDir('/tmp', () => {}, { timeoutMs: 1000, onExit: (error) => void ended.push(error) })
    await until(() => ended.length === 1, 10)
    assert(ended[0] instanceof sdk.TimeoutError)
    await rejects(files.watchDir('/no/such', () => {}), sdk.NotFoundError)
    await files.write('/tmp/f', '')
    await rejects(files.watchDir('/tmp/f', () => {}), sdk.InvalidArgumentError)
  })
)
