// VibeKit with its provider for E2B. Its agents are programs inside a template of their own, so only what VibeKit itself does with
// the sandbox is tried, on our template: files of a working directory, commands, the address of a port, pause and resume.
import assert from 'node:assert/strict'
import { createE2BProvider } from '@vibe-kit/e2b'
import { VibeKit } from '@vibe-kit/sdk'

const kit = new VibeKit()
  .withAgent({ type: 'claude', provider: 'anthropic', apiKey: 'none', model: 'none' })
  .withSandbox(createE2BProvider({ apiKey: process.env.E2B_API_KEY, templateId: 'code-interpreter-v1' }))
  .withWorkingDirectory('/srv/work')
  .withSecrets({ FACTOR: '6' })
try {
  const first = await kit.executeCommand('echo \'echo "sandbox $E2B_SANDBOX_ID $((FACTOR * 7))"\' > answer.sh; pwd')
  assert.equal(first.stdout, '/srv/work\n')
  await assert.rejects(kit.executeCommand('exit 3'), /exit status 3/)
  const id = await kit.getSession()
  assert.match(await kit.getHost(8000), new RegExp(`^8000-${id}\\.`))
  await kit.pause()
  await kit.resume()
  assert.equal(await kit.getSession(), id)
  console.log((await kit.executeCommand('sh answer.sh')).stdout)
} finally {
  await kit.kill()
}
