// Volumes: their content through the SDK, and in sandboxes.
import { randomUUID } from 'node:crypto'
import { assert, declares, feature, rejects, sdk, withSandbox } from './kit.mjs'

async function withVolume(body) {
  declares(/class Volume/)
  const volume = await sdk.Volume.create(`v-${randomUUID().slice(0, 12)}`)
  try {
    await body(volume)
  } finally {
    await sdk.Volume.destroy(volume.volumeId)
  }
}

feature('volumes', 'a volume is made, found and destroyed', () =>
  withVolume(async (volume) => {
    const again = await sdk.Volume.connect(volume.volumeId)
    assert.deepEqual([again.name, again.token], [volume.name, volume.token])
    assert.ok((await sdk.Volume.list()).some((one) => one.volumeId === volume.volumeId))
    assert.equal(await sdk.Volume.destroy(volume.volumeId), true)
    assert.equal(await sdk.Volume.destroy(volume.volumeId), false)
    await rejects(sdk.Volume.getInfo(volume.volumeId))
  })
)

feature('volumes', 'files and directories', () =>
  withVolume(async (volume) => {
    const written = await volume.writeFile('/a/hello.txt', 'grüße', { force: true, mode: 0o640 })
    assert.deepEqual([written.path, written.size, written.mode & 0o777], ['/a/hello.txt', 7, 0o640])
    assert.equal(await volume.readFile('/a/hello.txt'), 'grüße')
    const data = new Uint8Array(300_000).map((_, index) => index % 251)
    await volume.writeFile('/big.bin', new Blob([data]).stream())
    assert.deepEqual(await volume.readFile('/big.bin', { format: 'bytes' }), data)
    await volume.makeDir('/x')
    assert.deepEqual((await volume.list('/')).map((one) => one.path), ['/a', '/big.bin', '/x'])
    assert.equal((await volume.updateMetadata('/x', { mode: 0o700 })).mode & 0o777, 0o700)
    assert.equal(await volume.exists('/x'), true)
    await volume.remove('/x')
    assert.equal(await volume.exists('/x'), false)
    await rejects(volume.readFile('/nothing'))
  })
)

feature('volumes', 'a volume is shared with a sandbox', () =>
  withVolume(async (volume) => {
    await volume.writeFile('/from-outside', 'outside')
    await withSandbox({ volumeMounts: { '/mnt/data': volume } }, async (sandbox) => {
      assert.equal(await sandbox.files.read('/mnt/data/from-outside'), 'outside')
      await sandbox.commands.run('echo -n inside > /mnt/data/from-inside')
      assert.equal(await volume.readFile('/from-inside'), 'inside')
    })
  })
)
