// ComputeSDK with its provider for E2B. It has no agent of its own: it is what agents call. No model takes part.
import assert from 'node:assert/strict'
import { e2b } from '@computesdk/e2b'
import { compute } from 'computesdk'

compute.setConfig({ provider: e2b({ apiKey: process.env.E2B_API_KEY }) })
const sandbox = await compute.sandbox.create({ envs: { FACTOR: '6' } })
try {
  await sandbox.filesystem.mkdir('/tmp/work')
  await sandbox.filesystem.writeFile('/tmp/work/answer.sh', 'echo "sandbox $E2B_SANDBOX_ID $((FACTOR * 7))"')
  assert.equal(await sandbox.filesystem.exists('/tmp/work/missing'), false)
  assert.deepEqual((await sandbox.filesystem.readdir('/tmp/work')).map((entry) => entry.name), ['answer.sh'])
  assert.equal((await sandbox.runCommand('exit 3')).exitCode, 3)
  assert.equal((await sandbox.getInfo()).id, sandbox.sandboxId)
  assert.ok((await compute.sandbox.list()).some((other) => other.sandboxId === sandbox.sandboxId))
  assert.match(await sandbox.getUrl({ port: 8000 }), new RegExp(`^https://8000-${sandbox.sandboxId}\\.`))
  const again = await compute.sandbox.getById(sandbox.sandboxId)
  console.log((await again.runCommand('sh answer.sh', { cwd: '/tmp/work' })).stdout)
} finally {
  await sandbox.destroy()
}
assert.equal(await compute.sandbox.getById(sandbox.sandboxId), null)
