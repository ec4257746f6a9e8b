// Templates: the builder, tags, and sandboxes of them.
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Sandbox, assert, feature, has, rejects, sdk, unique, until, url, withSandbox } from './kit.mjs'

const headers = { 'X-API-Key': process.env.E2B_API_KEY }

async function withName(body) {
  has(sdk, 'Template')
  has(sdk.Template, 'assignTags')
  const name = unique('tpl')
  try {
    await body(name)
  } finally {
    await fetch(`${url}/templates/${name}`, { method: 'DELETE', headers })
  }
}

feature('builds', 'copy, run, env, workdir and user leave their marks', () =>
  withName(async (name) => {
    const place = mkdtempSync(join(tmpdir(), 'sdk-'))
    try {
      writeFileSync(join(place, 'hello.txt'), 'hello\n')
      const template = sdk
        .Template({ fileContextPath: place })
        .fromImage('debian:12')
        .copy('hello.txt', '/srv/')
        .setEnvs({ GREETING: 'good day' })
        .runCmd('echo $GREETING > /tmp/greeting; whoami > /tmp/who')
        .runCmd('id -u > /tmp/root', { user: 'root' })
        .setWorkdir('/srv/work')
      const lines = []
      const built = await sdk.Template.build(template, name, {
        cpuCount: 1,
        memoryMB: 512,
        onBuildLogs: (line) => lines.push(line.toString()),
      })
      assert.equal(built.name, name)
      assert(lines.some((line) => line.includes('GREETING')), lines.join('\n'))
      await withSandbox({ template: name }, async (sandbox) => {
        const done = await sandbox.commands.run('cat /srv/hello.txt /tmp/greeting /tmp/who /tmp/root; pwd; echo $GREETING')
        assert.equal(done.stdout, 'hello\ngood day\nuser\n0\n/srv/work\ngood day\n')
      })
    } finally {
      rmSync(place, { recursive: true })
    }
  })
)

async function withFolder(body) {
  const place = mkdtempSync(join(tmpdir(), 'sdk-'))
  try {
    mkdirSync(join(place, 'folder', 'sub'), { recursive: true })
    for (const file of ['a.txt', 'b.txt', 'sub/c.txt']) writeFileSync(join(place, 'folder', file), `${file}\n`)
    await body(place)
  } finally {
    rmSync(place, { recursive: true })
  }
}

// Several files make the destination a directory; links are copied as links, wherever they lead.
feature('builds', 'a pattern copies all that it means', () =>
  withName((name) =>
    withFolder(async (place) => {
      for (const [link, target] of [['near', 'a.txt'], ['nowhere', 'gone'], ['absolute', '/etc/hostname']]) {
        symlinkSync(target, join(place, 'folder', link))
      }
      const template = sdk
        .Template({ fileContextPath: place })
        .fromImage('debian:12')
        .copy('folder/*', 'out', { forceUpload: true, resolveSymlinks: false })
        .copy('folder/**', 'all')
        .copy('folder/**/*.txt', '/srv/texts')
        .copy('folder/near', 'link')
        .copy('folder/near', 'followed', { resolveSymlinks: true })
      await sdk.Template.build(template, name)
      await withSandbox({ template: name }, async (sandbox) => {
        const links = 'readlink out/near out/nowhere out/absolute all/nowhere link'
        const files = 'out/a.txt out/b.txt out/sub/c.txt all/a.txt all/sub/c.txt /srv/texts/a.txt /srv/texts/sub/c.txt followed'
        const done = await sandbox.commands.run(`cat ${files}; ${links}`)
        assert.deepEqual(done.stdout.trim().split('\n'), [
          ...['a.txt', 'b.txt', 'sub/c.txt', 'a.txt', 'sub/c.txt', 'a.txt', 'sub/c.txt', 'a.txt'],
          ...['a.txt', 'gone', '/etc/hostname', 'gone', 'a.txt'],
        ])
      })
    })
  )
)

feature('builds', 'a pattern in a Dockerfile copies all that it means', () =>
  withName((name) =>
    withFolder(async (place) => {
      const text = 'FROM debian:12\nWORKDIR /opt/app\nCOPY folder/* out\n'
      await sdk.Template.build(sdk.Template({ fileContextPath: place }).fromDockerfile(text), name)
      await withSandbox({ template: name }, async (sandbox) => {
        const done = await sandbox.commands.run('cd /opt/app/out; cat a.txt b.txt sub/c.txt')
        assert.equal(done.stdout, 'a.txt\nb.txt\nsub/c.txt\n')
      })
    })
  )
)

feature('builds', 'a user step adds the user', () =>
  withName(async (name) => {
    const template = sdk.Template().fromImage('debian:12').setUser('app').runCmd('whoami > /tmp/who; touch ~/mine')
    await sdk.Template.build(template, name)
    await withSandbox({ template: name }, async (sandbox) => {
      const done = await sandbox.commands.run('cat /tmp/who; whoami; stat -c %U /home/app/mine')
      assert.equal(done.stdout, 'app\napp\napp\n')
    })
  })
)

feature('builds', 'a step that fails is told', () =>
  withName(async (name) => {
    const template = sdk.Template().fromImage('debian:12').runCmd('true').runCmd('exit 7')
    assert.match((await rejects(sdk.Template.build(template, name), sdk.BuildError)).message, /7/)
  })
)

feature('builds', "an unknown user is told in E2B's words", () =>
  withName(async (name) => {
    const template = sdk.Template().fromImage('debian:12').runCmd('whoami', { user: 'root123' })
    const words = "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
    const { message } = await rejects(sdk.Template.build(template, name), sdk.BuildError)
    assert(message.includes(words), message)
  })
)

feature('builds', 'a build in the background becomes ready, with its start command up', () =>
  withName(async (name) => {
    const template = sdk
      .Template()
      .fromTemplate('base')
      .runCmd('echo served > /home/user/index.html')
      .setStartCmd('cd /home/user && python3 -m http.server 8124', sdk.waitForPort(8124))
    const begun = await sdk.Template.buildInBackground(template, name, { skipCache: true })
    assert.equal((await sdk.Template.getBuildStatus(begun)).status, 'building')
    await until(async () => {
      const { status } = await sdk.Template.getBuildStatus(begun, { logsOffset: 0 })
      assert(['waiting', 'building', 'ready'].includes(status), status)
      return status === 'ready'
    }, 80)
    await withSandbox({ template: name }, async (sandbox) => {
      assert.equal((await sandbox.commands.run('curl -s localhost:8124/index.html')).stdout, 'served\n')
    })
  })
)

feature('tags', 'tags name versions and go back', () =>
  withName(async (name) => {
    const version = (text) => sdk.Template().fromImage('debian:12').runCmd(`echo ${text} > /tmp/version`)
    assert.equal(await sdk.Template.exists(name), false)
    const one = await sdk.Template.build(version('one'), `${name}:v1`)
    const two = await sdk.Template.build(version('two'), name)
    assert.equal(one.templateId, two.templateId)
    assert.equal(await sdk.Template.exists(name), true)
    const read = (template) =>
      withSandbox({ template }, async (sandbox) => (await sandbox.commands.run('cat /tmp/version')).stdout)
    assert.deepEqual([await read(name), await read(`${name}:v1`)], ['two\n', 'one\n'])
    const moved = await sdk.Template.assignTags(`${name}:v1`, ['default', 'old'])
    assert.equal(moved.buildId, one.buildId)
    assert.equal(await read(name), 'one\n')
    const tags = await sdk.Template.getTags(name)
    assert.deepEqual(tags.map((tag) => tag.tag).sort(), ['default', 'old', 'v1'])
    await sdk.Template.removeTags(name, ['old'])
    assert.match((await rejects(Sandbox.create(`${name}:old`))).message, /old/)
  })
)
