// Commands: results, callbacks, users, background, standard input; terminals; git.
import { Sandbox, assert, cannot, feature, has, rejects, sdk, until, withSandbox } from './kit.mjs'

// On hosts with cgroup v2, or with v1.
const memoryLimit = 'cd /sys/fs/cgroup; if [ -e memory.max ]; then cat memory.max; else cat memory/memory.limit_in_bytes; fi'
const bytes = (text) => new TextEncoder().encode(text)

feature('commands', 'output and exit code come back', { core: true }, () =>
  withSandbox(async ({ commands }) => {
    const result = await commands.run('echo out; echo err >&2')
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
  })
)

feature('commands', 'a failing command rejects with its output', { core: true }, () =>
  withSandbox(async ({ commands }) => {
    const error = await rejects(commands.run('echo a; echo b >&2; exit 7'), sdk.CommandExitError)
    assert.deepEqual([error.exitCode, error.stdout, error.stderr, error.error], [7, 'a\n', 'b\n', 'exit status 7'])
  })
)

feature('commands', 'envs, cwd and user hold', { core: true }, () =>
  withSandbox({ envs: { A: '1', B: '1' } }, async ({ commands }) => {
    assert.equal((await commands.run('echo $A$B', { envs: { B: '2' } })).stdout, '12\n')
    assert.equal((await commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
    assert.equal((await commands.run('whoami; pwd')).stdout, 'user\n/home/user\n')
    assert.equal((await commands.run('whoami; pwd', { user: 'root' })).stdout, 'root\n/root\n')
  })
)

feature('commands', 'processes have an age', () =>
  withSandbox(async ({ commands }) => {
    // `ps` cuts the uptime to hundredths by way of a float, so a process of the same hundredth can be younger than nothing.
    const age = `sleep 0.05; ps -o etimes= -p $$; cut -d. -f1 /proc/uptime; date -d "$(ps -o lstart= -p $$)" +%s`
    const { stdout } = await commands.run(`${age}; awk '$1 == "btime" { print $2 }' /proc/stat; date +%s`)
    const [shell, uptime, started, boot, now] = stdout.trim().split('\n').map(Number)
    assert(shell >= 0 && shell <= uptime, stdout)
    assert(Math.abs(now - shell - started) < 30, stdout)
    assert(Math.abs(now - uptime - boot) < 30, stdout)
  })
)

feature('commands', 'the memory limit is visible inside', () =>
  withSandbox(async (sandbox) => {
    const { memoryMB } = await has(sandbox, 'getInfo')()
    assert.equal(Number((await sandbox.commands.run(memoryLimit)).stdout), memoryMB * 1024 * 1024)
  })
)

feature('commands', 'a package that the host has is installed with its settings', () =>
  withSandbox(async ({ commands }) => {
    const asRoot = { user: 'root', timeoutMs: 80_000 }
    const install = 'DEBIAN_FRONTEND=noninteractive apt-get install -y -qq redis-server'
    await commands.run(`(apt-get update -qq && ${install}) 2>&1`, asRoot)
    const answers = "timeout 10 sh -c 'until redis-cli ping; do sleep 0.1; done'"
    await commands.run(`redis-server /etc/redis/redis.conf --daemonize yes && ${answers}`, asRoot)
    assert.equal((await commands.run('redis-cli set a 1; redis-cli get a')).stdout, 'OK\n1\n')
  })
)

feature('commands', 'a missing directory or user is refused', () =>
  withSandbox(async ({ commands }) => {
    await rejects(commands.run('true', { cwd: '/no/such' }), sdk.InvalidArgumentError)
    await rejects(commands.run('true', { user: 'nobody-here' }), sdk.AuthenticationError)
  })
)

feature('commands', "endings and refusals are those of E2B's daemon", () =>
  withSandbox(async ({ commands }) => {
    const killed = await rejects(commands.run('kill -TERM $$'), sdk.CommandExitError)
    assert.deepEqual([killed.exitCode, killed.error], [-1, 'signal: terminated'])
    const shell = await rejects(commands.run("bash -c 'kill -TERM $$'; exit $?"), sdk.CommandExitError)
    assert.deepEqual([shell.exitCode, shell.error], [143, 'exit status 143'])
    const long = await rejects(commands.run(`true ${'x'.repeat(200_000)}`), sdk.InvalidArgumentError)
    assert.match(long.message, /argument list too long/)
    const closed = await rejects(commands.run('true', { cwd: '/root' }), sdk.InvalidArgumentError)
    assert.match(closed.message, /permission denied/)
  })
)

feature('commands', 'callbacks hear the output as it comes', { core: true }, () =>
  withSandbox(async ({ commands }) => {
    const [heard, errors, times] = [[], [], []]
    const result = await commands.run('for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.3; done', {
      onStdout: (text) => {
        heard.push(text)
        times.push(Date.now())
      },
      onStderr: (text) => void errors.push(text),
    })
    assert.equal(heard.join(''), '1\n2\n3\n')
    assert.equal(errors.join(''), result.stderr)
    assert(times.at(-1) - times[0] > 400)
  })
)

feature('commands', 'large output arrives whole', { core: true }, () =>
  withSandbox(async ({ commands }) => {
    const { stdout } = await commands.run('seq 1 1000000')
    assert.equal(stdout.length, 6888896)
    assert(stdout.endsWith('\n1000000\n'))
  })
)

feature('commands', 'characters split over chunks stay whole', () =>
  withSandbox(async ({ commands }) => {
    cannot(['2.19.5'], 'it decodes each chunk by itself')
    const slow = "printf '\\xf0\\x9f'; sleep 0.3; printf '\\x92\\xa9'; printf 'ü%.0s' $(seq 1 40000)"
    assert.equal((await commands.run(slow)).stdout, '💩' + 'ü'.repeat(40000))
  })
)

feature('commands', 'a command that takes too long is ended', { core: true }, () =>
  withSandbox(async ({ commands }) => {
    const start = Date.now()
    await rejects(commands.run('sleep 4711', { timeoutMs: 1000 }), sdk.TimeoutError)
    assert(Date.now() - start < 5000)
    const count = async () => (await commands.run("pgrep -fc '^sleep 471[1]$' || true")).stdout.trim()
    await until(async () => (await count()) === '0', 5)
  })
)

feature('commands', 'many commands at once do not mix', () =>
  withSandbox(async ({ commands }) => {
    const results = await Promise.all(Array.from({ length: 30 }, (_, i) => commands.run(`sleep 0.1; echo ${i}`)))
    assert.deepEqual(results.map((result) => result.stdout), Array.from({ length: 30 }, (_, i) => `${i}\n`))
  })
)

feature('background', 'running commands are listed, killed and waited for', { core: true }, () =>
  withSandbox(async ({ commands }) => {
    const handle = await commands.run('sleep 300', { background: true, cwd: '/tmp', envs: { A: 'b' } })
    const [found] = (await commands.list()).filter((one) => one.pid === handle.pid)
    assert.deepEqual([found.cmd, found.args, found.cwd], ['/bin/bash', ['-l', '-c', 'sleep 300'], '/tmp'])
    assert.equal(await commands.kill(handle.pid), true)
    await rejects(handle.wait(), sdk.CommandExitError)
    assert.equal(await commands.kill(handle.pid), false)
    const done = await commands.run('sleep 0.3; echo done', { background: true })
    assert.equal((await done.wait()).stdout, 'done\n')
  })
)

feature('background', 'what was killed is gone with its children', () =>
  withSandbox(async ({ commands, files, pty }) => {
    for (let round = 0; round < 10; round++) {
      const script = `sleep 300 & echo $! > /tmp/new; mv /tmp/new /tmp/pid-${round}; wait`
      const handle = await commands.run(script, { background: true })
      await until(() => files.exists(`/tmp/pid-${round}`))
      const child = (await files.read(`/tmp/pid-${round}`)).trim()
      assert.equal(await commands.kill(handle.pid), true)
      for (const pid of [handle.pid, child]) assert.equal(await files.exists(`/proc/${pid}/stat`), false)
    }
    const terminal = await pty.create({ cols: 80, rows: 24, onData: () => {} })
    // What the shell runs has a process group of its own.
    const job = `sh -c 'trap "" HUP; sleep 300 & echo $$ $! > /tmp/new; mv /tmp/new /tmp/job; wait'\n`
    await pty.sendInput(terminal.pid, bytes(job))
    await until(() => files.exists('/tmp/job'))
    const children = (await files.read('/tmp/job')).trim().split(' ')
    assert.equal(await pty.kill(terminal.pid), true)
    for (const pid of [terminal.pid, ...children]) assert.equal(await files.exists(`/proc/${pid}/stat`), false)
    await rejects(terminal.wait())
  })
)

feature('background', 'a command survives a disconnect and is found by pid', { core: true }, () =>
  withSandbox(async ({ commands, files }) => {
    const script = 'while [ ! -e /tmp/go ]; do sleep 0.05; done; echo late; exit 3'
    const handle = await commands.run(script, { background: true })
    await handle.disconnect()
    const again = await commands.connect(handle.pid)
    await files.write('/tmp/go', '')
    const error = await rejects(again.wait(), sdk.CommandExitError)
    assert.deepEqual([error.exitCode, error.stdout], [3, 'late\n'])
    await rejects(commands.connect(999_999), sdk.NotFoundError)
  })
)

feature('background', 'a sandbox killed under a command ends it with an error', async () => {
  const sandbox = await Sandbox.create()
  const handle = await sandbox.commands.run('sleep 60', { background: true })
  const waiting = rejects(handle.wait(), sdk.SandboxError)
  await sandbox.kill()
  await waiting
})

feature('stdin', 'text sent to standard input is read', { core: true }, () =>
  withSandbox(async ({ commands }) => {
    const handle = await commands.run('read line; echo got $line', { background: true, stdin: true })
    await commands.sendStdin(handle.pid, 'hello\n')
    assert.equal((await handle.wait()).stdout, 'got hello\n')
  })
)

feature('stdin', 'a closed standard input ends the reader', () =>
  withSandbox(async ({ commands }) => {
    const handle = await commands.run('wc -c', { background: true, stdin: true })
    await has(handle, 'sendStdin')('a'.repeat(1000))
    await handle.sendStdin(new Uint8Array(1000).fill(255))
    await handle.closeStdin()
    assert.equal((await handle.wait()).stdout.trim(), '2000')
    await rejects(commands.sendStdin(999_999, 'x'), sdk.NotFoundError)
  })
)

feature('pty', 'a terminal takes input, is resized and ends with its shell', { core: true }, () =>
  withSandbox(async ({ commands, pty }) => {
    let text = ''
    const onData = (data) => void (text += new TextDecoder().decode(data))
    const terminal = await pty.create({ cols: 80, rows: 24, envs: { MARK: 'abc' }, cwd: '/tmp', onData })
    const send = (line) => pty.sendInput(terminal.pid, bytes(line))
    const shows = (wanted) => until(() => text.includes(wanted), 15)
    await send('echo [$MARK$TERM]; pwd; stty size\n')
    await shows('[abcxterm-256color]')
    await shows('24 80')
    await pty.resize(terminal.pid, { cols: 132, rows: 40 })
    await send('stty size\n')
    await shows('40 132')
    await send('sleep 4712 && echo no\n')
    const sleeping = async () => (await commands.run("ps -eo stat,args | grep 'sleep 471[2]' || true")).stdout
    await until(async () => (await sleeping()).includes('+'), 15)
    await send('\x03')
    await shows('^C')
    await send("echo aft''er\n")
    await shows('after')
    await send('exit 5\n')
    assert.equal((await rejects(terminal.wait(), sdk.CommandExitError)).exitCode, 5)
  })
)

feature('pty', 'a terminal is found again by pid and killed', () =>
  withSandbox(async ({ pty }) => {
    const first = await pty.create({ cols: 80, rows: 24, onData: () => {} })
    await first.disconnect()
    let text = ''
    const onData = (data) => void (text += new TextDecoder().decode(data))
    const second = await has(pty, 'connect')(first.pid, { onData })
    await pty.sendInput(first.pid, bytes("echo fo''und\n"))
    await until(() => text.includes('found'), 15)
    assert.equal(await pty.kill(first.pid), true)
    await rejects(second.wait())
    assert.equal(await pty.kill(first.pid), false)
  })
)

feature('git', 'a repository is made, branched, pushed and pulled', () =>
  withSandbox(async ({ git, files }) => {
    has(git, 'init')
    const [origin, one, two] = ['/home/user/origin.git', '/home/user/one', '/home/user/two']
    await git.init(origin, { bare: true, initialBranch: 'main' })
    await git.configureUser('Ann', 'ann@example.com')
    await git.clone(origin, { path: one })
    await files.write(`${one}/f`, 'text')
    assert.equal((await git.status(one)).hasUntracked, true)
    await git.add(one)
    await git.commit(one, 'first', { authorName: 'Bob', authorEmail: 'bob@example.com' })
    assert.equal((await git.status(one)).isClean, true)
    await git.push(one, { remote: 'origin', branch: 'main', setUpstream: true })
    await git.clone(origin, { path: two })
    assert.equal(await files.read(`${two}/f`), 'text')
    await git.createBranch(two, 'side')
    assert.deepEqual((await git.branches(two)).currentBranch, 'side')
    await git.checkoutBranch(two, 'main')
    await git.deleteBranch(two, 'side')
    await files.write(`${one}/f`, 'more')
    await git.add(one)
    await git.commit(one, 'second')
    await git.push(one)
    await git.pull(two)
    assert.equal(await files.read(`${two}/f`), 'more')
    assert.equal(await git.remoteGet(two, 'origin'), origin)
    assert.equal(await git.getConfig('user.name', { scope: 'global' }), 'Ann')
  })
)
