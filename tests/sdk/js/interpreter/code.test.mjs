// Code in the default context: state, results and their forms, errors, output as it comes, environment, languages.
import { readFileSync } from 'node:fs'
import { assert, feature, rejects, sdk, withSandbox } from '../kit.mjs'

const joined = (lines) => lines.join('')
const PACKAGES = new URL('../../../../crates/node/recipes/code-interpreter-v1/packages.txt', import.meta.url)

feature('code', 'names stay from call to call', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const first = await sandbox.runCode('x = 20')
    const second = await sandbox.runCode('x * 2 + 2')
    assert.deepEqual([first.results.length, first.text], [0, undefined])
    assert.equal(second.text, '42')
    assert(second.results[0].isMainResult)
    assert.equal(second.executionCount, first.executionCount + 1)
    assert.equal(second.error, undefined)
  })
)

feature('code', 'an error has name, value and traceback', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const { error } = await sandbox.runCode("def f():\n    raise ValueError('wrong')\nf()")
    assert.deepEqual([error.name, error.value], ['ValueError', 'wrong'])
    assert(error.traceback.includes('line 2'))
    assert.equal((await sandbox.runCode('1')).text, '1')
  })
)

// All of the list, except those that `isopod doctor` says this host's Python cannot have.
feature('code', "the packages are there in E2B's versions", () =>
  withSandbox(async (sandbox) => {
    const wanted = { ...listedVersions(), ...JSON.parse(process.env.ISOPOD_SUITE_PACKAGES) }
    const code = `
from importlib.metadata import PackageNotFoundError, version

def version_or_none(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None

{name: version_or_none(name) for name in ${JSON.stringify(Object.keys(wanted))}}`
    const { error, results } = await sandbox.runCode(code)
    assert.equal(error, undefined)
    assert.deepEqual(results[0].json, wanted)
  })
)

// The packages that the template's list has with exact versions.
function listedVersions() {
  const lines = readFileSync(PACKAGES, 'utf8').split('\n').filter((line) => !line.startsWith('#'))
  const words = lines.flatMap((line) => line.split(/\s+/)).filter((word) => word.includes('=='))
  return Object.fromEntries(words.map((word) => word.split('==')))
}

feature('code-streams', 'callbacks hear everything in order', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const heard = []
    const code = "print('a')\ndisplay(1)\nprint('c')\ndisplay(2)\nimport sys\nprint('e', file=sys.stderr)\nraise KeyError('k')"
    const execution = await sandbox.runCode(code, {
      onStdout: (message) => void heard.push(['out', message.line, message.error]),
      onStderr: (message) => void heard.push(['err', message.line, message.error]),
      onResult: (result) => void heard.push(['result', result.text]),
      onError: (error) => void heard.push(['error', error.name]),
    })
    assert.deepEqual(withOutputJoined(heard), [
      ['out', 'a\n', false],
      ['result', '1'],
      ['out', 'c\n', false],
      ['result', '2'],
      ['err', 'e\n', true],
      ['error', 'KeyError'],
    ])
    assert.deepEqual([joined(execution.logs.stdout), joined(execution.logs.stderr)], ['a\nc\n', 'e\n'])
  })
)

// What was heard, with the messages of one stream that follow each other as one: a line may come in parts.
function withOutputJoined(heard) {
  const events = []
  for (const [kind, text, ...rest] of heard) {
    const last = events.at(-1)
    if (last?.[0] === kind && (kind === 'out' || kind === 'err')) last[1] += text
    else events.push([kind, text, ...rest])
  }
  return events
}

feature('code-streams', 'output comes while the code runs', { core: true }, () =>
  withSandbox(async (sandbox) => {
    // The code continues only when its first line was received outside.
    const code =
      "import os, time\nprint('first')\nend = time.monotonic() + 30\n" +
      "while not os.path.exists('/tmp/heard') and time.monotonic() < end: time.sleep(0.01)\n" +
      "print(os.path.exists('/tmp/heard'))"
    let heard = ''
    let written
    await sandbox.runCode(code, {
      onStdout: (message) => {
        heard += message.line
        written ??= sandbox.files.write('/tmp/heard', '')
      },
    })
    await written
    assert.equal(heard, 'first\nTrue\n')
  })
)

feature('code-streams', 'large output arrives whole', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const { logs } = await sandbox.runCode('for i in range(200_000): print(i)')
    const expected = Array.from({ length: 200_000 }, (_, i) => `${i}\n`).join('')
    assert.equal(joined(logs.stdout), expected)
  })
)

feature('code-env', 'variables of the sandbox and of a call', { core: true }, () =>
  withSandbox({ envs: { BASE: 'sandbox' } }, async (sandbox) => {
    const code = "import os\n(os.environ['BASE'], os.environ.get('CALL'))"
    assert.equal((await sandbox.runCode(code)).text, "('sandbox', None)")
    assert.equal((await sandbox.runCode(code, { envs: { BASE: 'call', CALL: '1' } })).text, "('call', '1')")
    assert.equal((await sandbox.runCode(code)).text, "('sandbox', None)")
  })
)

feature('code-env', 'a cell installs a package of the distribution', () =>
  withSandbox(async (sandbox) => {
    assert.equal((await sandbox.runCode("import shutil; shutil.which('hello') is None")).text, 'True')
    const install = '!apt-get update -qq && apt-get install -y -qq --no-install-recommends hello && hello'
    const { error, logs } = await sandbox.runCode(install, { timeoutMs: 80_000 })
    assert(error === undefined && joined(logs.stdout).includes('Hello, world!'), JSON.stringify([error, logs]))
    assert.equal((await sandbox.commands.run('hello')).stdout, 'Hello, world!\n')
  })
)

feature('languages', 'JavaScript in the template nodejs', { core: true }, () =>
  withSandbox({ template: 'nodejs' }, async (sandbox) => {
    const run = (code, options) => sandbox.runCode(code, { language: 'javascript', ...options })
    assert.equal((await run('6*7')).text, '42')
    await run('const x = await Promise.resolve(20)')
    const execution = await run("console.log('out'); console.error('err'); x * 2 + 2")
    assert.deepEqual([joined(execution.logs.stdout), joined(execution.logs.stderr), execution.text], ['out\n', 'err\n', '42'])
    const { error } = await run("throw new RangeError('far')")
    assert.deepEqual([error.name, error.value], ['RangeError', 'far'])
    await rejects(run('while (true) {}', { timeoutMs: 2000 }), sdk.TimeoutError)
    assert.equal((await run('x')).text, '20')
  })
)

feature('forms', 'a table and an image have their forms', { core: true }, () =>
  withSandbox(async (sandbox) => {
    const [table] = (await sandbox.runCode("import pandas as pd\npd.DataFrame({'a': [1, 2]})")).results
    assert.deepEqual(table.data, { a: [1, 2] })
    assert(table.html.includes('<table'))
    assert([...table.formats()].includes('data'))
    const [image] = (await sandbox.runCode("from PIL import Image\nImage.new('RGB', (2, 2))")).results
    assert.equal(Buffer.from(image.png, 'base64').subarray(1, 4).toString(), 'PNG')
  })
)

feature('forms', 'every form has its field', () =>
  withSandbox(async (sandbox) => {
    const { results } = await sandbox.runCode(
      "from IPython.display import *\ndisplay(HTML('<b>'), Markdown('*m*'), SVG('<svg/>'), Latex('$x$'), JSON({'a': 1}), Javascript('1'))\n" +
        "display({'application/x-own': 'o'}, raw=True)\n{'b': None}"
    )
    const [html, markdown, svg, latex, json, javascript, own, main] = results
    assert.deepEqual([html.html, markdown.markdown, svg.svg, latex.latex], ['<b>', '*m*', '<svg/>', '$x$'])
    assert.deepEqual([json.json, javascript.javascript], [{ a: 1 }, '1'])
    assert.deepEqual(own.raw.extra, { 'application/x-own': 'o' })
    assert.deepEqual([main.json, main.isMainResult], [{ b: null }, true])
  })
)

feature('languages', 'JavaScript and TypeScript', { core: true }, () =>
  withSandbox({ envs: { BASE: 'sandbox' } }, async (sandbox) => {
    for (const language of ['javascript', 'js', 'typescript', 'ts']) {
      const execution = await sandbox.runCode("console.log('out'); console.error('err'); 6 * 7", { language })
      assert.deepEqual([joined(execution.logs.stdout), joined(execution.logs.stderr)], ['out\n', 'err\n'])
      assert.equal(execution.text, '42')
    }
    await sandbox.runCode('const x: number = await Promise.resolve(20)', { language: 'ts' })
    assert.equal((await sandbox.runCode('x + 1', { language: 'ts' })).text, '21')
    const { error } = await sandbox.runCode("throw new RangeError('far')", { language: 'js' })
    assert.deepEqual([error.name, error.value], ['RangeError', 'far'])
    const code = 'process.env.BASE + process.env.CALL'
    assert.equal((await sandbox.runCode(code, { language: 'js', envs: { CALL: '1' } })).text, 'sandbox1')
  })
)

feature('languages', 'Bash', { core: true }, () =>
  withSandbox(async (sandbox) => {
    await sandbox.runCode('x=5', { language: 'bash' })
    const { logs } = await sandbox.runCode('echo $x $CALL', { language: 'bash', envs: { CALL: 'c' } })
    assert.equal(joined(logs.stdout), '5 c\n')
  })
)

feature('languages', 'a missing language says what is there', () =>
  withSandbox(async (sandbox) => {
    const language = 'klingon'
    for (const call of [() => sandbox.runCode('1', { language }), () => sandbox.createCodeContext({ language })]) {
      const { message } = await rejects(call(), sdk.NotFoundError)
      for (const part of ["'klingon'", 'bash, ', 'javascript, ', 'python, ', "'code-interpreter-full'"]) {
        assert(message.includes(part), message)
      }
    }
  })
)
