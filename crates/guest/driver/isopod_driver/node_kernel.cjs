// Runs cells of JavaScript in Node.js. The driver's node_kernel.py starts it with a socket, and both write lines of JSON:
//
//     from the driver:  {"op": "run", "code": …, "name": …} | {"op": "interrupt"}
//     to the driver:    {"kind": "ready" | "result" | "display" | "error" | "stuck" | "done", …}
//
// Cells run in the main thread, in the REPL mode of V8's inspector: names may be declared again, `await` works outside of
// functions, and a cell has the value of its last expression. What they print goes to the process's own streams. A second
// thread owns the socket, so an interrupt arrives while a cell keeps the main thread busy, and nothing that a cell does to its
// globals changes what the driver is told.

'use strict'

const { isMainThread, parentPort, workerData, Worker } = require('worker_threads')
const inspector = require('inspector')

const MIN_MAJOR = 18
// The names that rewritten imports call in a cell.
const IMPORT = '__isopodImport'
const META = '__isopodImportMeta'

if (isMainThread) {
  runCells()
} else {
  talkToDriver()
}

/** The main thread: evaluates what the other thread sends, and sends back what became of it. */
function runCells() {
  if (parseInt(process.versions.node, 10) < MIN_MAJOR) {
    process.stderr.write(`Node.js ${MIN_MAJOR} or newer is needed, and this is ${process.versions.node}\n`)
    process.exit(1)
  }
  const { inspect } = require('util')
  const { onInit } = require('v8').promiseHooks
  const exit = process.reallyExit.bind(process)
  const sink = {}
  const unfinished = new Map()
  let current = 0
  const session = new inspector.Session()
  const port = new Worker(__filename, { workerData: Number(process.argv[2]) })
  const send = port.postMessage.bind(port)
  // Options of ours are not those of programs that a cell starts.
  process.execArgv.length = 0
  process.argv.length = 1

  writeAtOnce(process.stdout, 1)
  writeAtOnce(process.stderr, 2)
  // An error that nobody waits for must not end the kernel.
  const report = (error) => process.stderr.write(`Uncaught ${describe(error)}\n`)
  process.on('uncaughtException', report)
  process.on('unhandledRejection', report)

  session.connect()
  const sinkId = share(sink)
  defineGlobals()
  port.on('message', ({ ping, cell, code, name }) => {
    if (ping !== undefined) return send({ pong: ping })
    current = cell
    const expression = `${code}\n//# sourceURL=${name}`
    keepPromise(cell, () =>
      session.post('Runtime.evaluate', { expression, replMode: true, objectGroup: 'cell' }, (failure, outcome) => {
        end(cell, failure, outcome, code, name)
      })
    )
  })

  /**
   * Keeps the promise of a cell, which is the first one that an evaluation makes. Otherwise, the end of a cell that waits for
   * something that nobody can give any more is told in the middle of a garbage collection, which Node does not survive.
   */
  function keepPromise(cell, evaluate) {
    const stop = onInit((promise) => {
      stop()
      unfinished.set(cell, promise)
    })
    evaluate()
    stop()
  }

  async function end(cell, failure, outcome, code, name) {
    try {
      await tell(cell, failure, outcome, code, name)
    } finally {
      unfinished.delete(cell)
      send({ cell, kind: 'done' })
    }
  }

  async function tell(cell, failure, outcome, code, name) {
    try {
      if (failure) return cannotRun(cell, failure)
      const { exceptionDetails: problem, result } = outcome
      const value = local(problem ? problem.exception ?? {} : result)
      session.post('Runtime.releaseObjectGroup', { objectGroup: 'cell' })
      if (problem) return send({ cell, kind: 'error', ...explain(value, problem, code, name) })
      if (value !== undefined) send({ cell, kind: 'result', data: await bundle(value) })
    } catch (error) {
      // The value's own methods show it, and they may throw.
      send({ cell, kind: 'error', ...explain(error) })
    }
  }

  function cannotRun(cell, failure) {
    // Node has prepared for its end, because the cell has sent the process a signal. It runs nothing any more.
    if (failure.message.includes('context')) return exit(1)
    send({ cell, kind: 'interrupted' })
  }

  /** The value of a remote object of the session. */
  function local(remote) {
    const { objectId, unserializableValue, value } = remote
    const argument = objectId ? { objectId } : unserializableValue ? { unserializableValue } : { value }
    const functionDeclaration = 'function (value) { this.value = value }'
    session.post('Runtime.callFunctionOn', { objectId: sinkId, functionDeclaration, arguments: [argument] })
    const { value: found } = sink
    sink.value = undefined
    return found
  }

  /** The session's id of an object. */
  function share(object) {
    let id
    globalThis[IMPORT] = object
    session.post('Runtime.evaluate', { expression: IMPORT }, (_, { result }) => (id = result.objectId))
    delete globalThis[IMPORT]
    return id
  }

  function explain(error, problem, code, name) {
    const isError = typeof error === 'object' && error !== null && typeof error.stack === 'string'
    if (!isError) return { name: 'Uncaught', value: show(error), traceback: `Uncaught ${show(error)}` }
    const stack = withoutOurs(error.stack)
    // An error of the parser is nowhere in the code, so its place is not on the stack.
    const isEarly = error instanceof SyntaxError && problem && !/\n\s+at /.test(stack)
    const place = isEarly ? excerpt(code, name, problem) : ''
    return { name: String(error.name), value: String(error.message), traceback: place + stack }
  }

  function excerpt(code, name, { lineNumber, columnNumber }) {
    const line = code.split('\n')[lineNumber] ?? ''
    return `${name}:${lineNumber + 1}\n${line}\n${' '.repeat(columnNumber)}^\n\n`
  }

  function withoutOurs(stack) {
    const lines = stack.split('\n')
    const ours = lines.findIndex((line) => line.includes(__filename) || line.includes('(node:inspector'))
    return (ours < 0 ? lines : lines.slice(0, ours)).join('\n')
  }

  function describe(error) {
    return typeof error?.stack === 'string' ? withoutOurs(error.stack) : show(error)
  }

  function show(value) {
    return inspect(value, { depth: 4 })
  }

  /** The formats of a value: its own, as for Deno's kernel or IJavascript, or else text. */
  async function bundle(value) {
    const own = value?.[Symbol.for('Jupyter.display')] ?? value?._toMime
    if (typeof own === 'function') return plain(await own.call(value))
    // The driver removes the quotes.
    const text = typeof value === 'string' ? `'${value}'` : show(value)
    const found = { 'text/plain': text }
    for (const [method, mime] of METHODS) {
      if (typeof value?.[method] === 'function') found[mime] = String(await value[method]())
    }
    return found
  }

  /** What is sent to another thread must be data. */
  function plain(formats) {
    return JSON.parse(JSON.stringify(formats))
  }

  function defineGlobals() {
    const path = require('path')
    const Module = require('module')
    const filename = path.join(process.cwd(), 'cell.js')
    const cell = new Module(filename)
    cell.filename = filename
    cell.paths = Module._nodeModulePaths(process.cwd())
    findGlobalPackages(Module, path)
    // The file does not exist. What it imports and requires is found from the working directory.
    cell._compile('module.exports = { require, load: (name, options) => import(name, options) }', filename)
    const { require: find, load } = cell.exports
    cell.exports = {}
    const { href: url } = require('url').pathToFileURL(filename)
    const meta = { url, filename, dirname: process.cwd() }
    // Deno, which other templates have, wants the name of a registry.
    const named = (name) => String(name).replace(/^npm:\/?((?:@[^/]+\/)?[^/@]+)(?:@[^/]*)?/, '$1')
    define(IMPORT, (name, options) => load(named(name), options))
    define(META, meta)
    define('require', find)
    define('module', cell)
    define('exports', cell.exports)
    define('__filename', filename)
    define('__dirname', process.cwd())
    define('display', async (value) => send({ cell: current, kind: 'display', data: await bundle(value) }))
  }

  function define(name, value) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false })
  }

  /** Lets `require` find what `npm install -g` has installed. Programs that a cell starts are not affected. */
  function findGlobalPackages(Module, path) {
    const before = process.env.NODE_PATH
    const prefixes = [path.resolve(process.execPath, '../..'), '/usr/local', '/usr']
    const places = prefixes.map((prefix) => path.join(prefix, 'lib/node_modules'))
    process.env.NODE_PATH = [before, ...new Set(places)].filter(Boolean).join(path.delimiter)
    Module._initPaths()
    if (before === undefined) delete process.env.NODE_PATH
    else process.env.NODE_PATH = before
  }
}

/**
 * Makes a standard stream write without a queue. Output then does not wait for the end of a loop that prints, and an interrupt
 * cannot leave a queue that never moves again.
 */
function writeAtOnce(stream, fd) {
  const { writeSync } = require('fs')
  const pause = new Int32Array(new SharedArrayBuffer(4))
  stream._handle?.setBlocking?.(true)
  stream.write = (chunk, encoding, done) => {
    const after = typeof encoding === 'function' ? encoding : done
    let rest = typeof chunk === 'string' ? Buffer.from(chunk, typeof encoding === 'string' ? encoding : 'utf8') : chunk
    while (rest.length > 0) {
      try {
        rest = rest.subarray(writeSync(fd, rest))
      } catch (error) {
        // A program that shares the stream may have made it non-blocking.
        if (error.code !== 'EAGAIN') break
        Atomics.wait(pause, 0, 0, 5)
      }
    }
    if (typeof after === 'function') process.nextTick(after)
    return true
  }
}

/** The second thread: passes cells on, one at a time, and what becomes of them back. */
function talkToDriver() {
  const { Socket } = require('net')
  // How long the main thread may take to answer, and how often it is stopped before the driver helps.
  const ANSWER_MILLISECONDS = 50
  const STUCK_MILLISECONDS = 1000
  const socket = new Socket({ fd: workerData, readable: true, writable: true })
  const parser = findParser()
  const waiting = new Map()
  let buffered = []
  let cells = 0
  let running = 0
  let pings = 0

  const die = () => process.kill(process.pid, 'SIGKILL')
  const write = (message) => socket.write(`${JSON.stringify(message)}\n`)
  const after = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds, false))
  parentPort.on('message', receive)
  socket.on('data', read).on('error', die).on('close', die)
  write({ kind: 'ready' })

  function read(chunk) {
    buffered.push(chunk)
    if (!chunk.includes(10)) return
    const lines = Buffer.concat(buffered).toString().split('\n')
    buffered = [Buffer.from(lines.pop())]
    for (const line of lines) obey(JSON.parse(line))
  }

  function obey({ op, code, name }) {
    if (op === 'interrupt') return interrupt(running)
    running = ++cells
    parentPort.postMessage({ cell: running, code: withImports(parser, code), name })
  }

  function receive({ pong, cell, ...message }) {
    if (pong !== undefined) return waiting.get(pong)?.(true)
    // A cell that was interrupted while it waited may still end.
    if (cell === running) tell(message)
  }

  function tell(message) {
    if (message.kind === 'done') running = 0
    write(message.kind === 'interrupted' ? INTERRUPTED : message)
  }

  async function interrupt(cell) {
    const isRunning = () => cell !== 0 && running === cell
    while (isRunning() && !(await answers())) await stop()
    if (isRunning()) {
      // The main thread is free, so the cell waits for something, or cannot say that it was stopped.
      tell(INTERRUPTED)
      tell({ kind: 'done' })
    }
  }

  /** Whether the main thread is free. */
  function answers() {
    const id = ++pings
    const answer = new Promise((done) => waiting.set(id, done))
    parentPort.postMessage({ ping: id })
    return Promise.race([answer, after(ANSWER_MILLISECONDS)]).finally(() => waiting.delete(id))
  }

  /** Ends what the main thread executes, or else what it executes next: that is one of the questions. */
  async function stop() {
    // Not connected at other times: at its end, Node would say that it waits for a debugger.
    const session = new inspector.Session()
    let isStopped = false
    session.connectToMainThread()
    session.post('Runtime.terminateExecution', () => (isStopped = true))
    for (let since = Date.now(); !isStopped; await answers()) {
      if (Date.now() - since > STUCK_MILLISECONDS) {
        // A call that does not return to JavaScript, such as one that waits for a program.
        write({ kind: 'stuck' })
        since = Date.now()
      }
    }
    session.disconnect()
  }
}

const INTERRUPTED = {
  kind: 'error',
  name: 'KeyboardInterrupt',
  value: 'the cell was interrupted',
  traceback: 'KeyboardInterrupt',
}

// Formats by the methods of IJavascript.
const METHODS = [
  ['_toHtml', 'text/html'],
  ['_toSvg', 'image/svg+xml'],
  ['_toPng', 'image/png'],
  ['_toJpeg', 'image/jpeg'],
]

/** Node's own parser, which is hidden without `--expose-internals`. Cells without imports do not need it. */
function findParser() {
  try {
    return require('internal/deps/acorn/acorn/dist/acorn')
  } catch {
    return null
  }
}

/** The code with imports that work in a cell: there, `import` is not a statement, and `import()` finds no modules. */
function withImports(parser, code) {
  if (parser === null || !/\bimport\b/.test(code)) return code
  let tree
  try {
    tree = parser.parse(code, {
      ecmaVersion: 'latest',
      allowAwaitOutsideFunction: true,
      allowImportExportEverywhere: true,
      allowHashBang: true,
      allowReturnOutsideFunction: true,
    })
  } catch {
    // V8 says what is wrong.
    return code
  }
  return replacements(tree, code)
    .sort((one, other) => other.start - one.start)
    .reduce((text, { start, end, by }) => text.slice(0, start) + by + text.slice(end), code)
}

function replacements(node, code, found = []) {
  if (Array.isArray(node)) {
    for (const one of node) replacements(one, code, found)
  } else if (typeof node?.type === 'string') {
    if (node.type === 'ImportDeclaration') {
      // Errors name lines of the original.
      const lines = code.slice(node.start, node.end).replace(/[^\n]/g, '')
      found.push({ start: node.start, end: node.end, by: `${declaration(node)};${lines}` })
    } else if (node.type === 'ImportExpression') {
      found.push({ start: node.start, end: node.start + 'import'.length, by: IMPORT })
    } else if (node.type === 'MetaProperty' && node.meta.name === 'import') {
      found.push({ start: node.start, end: node.end, by: META })
    }
    for (const key of Object.keys(node)) replacements(node[key], code, found)
  }
  return found
}

/** A declaration in the place of `import … from 'module'`. */
function declaration({ specifiers, source, attributes = [] }) {
  const named = attributes.map(({ key, value }) => `${key.raw ?? key.name}: ${value.raw}`)
  const options = named.length > 0 ? `, { with: { ${named.join(', ')} } }` : ''
  const loaded = `await ${IMPORT}(${source.raw}${options})`
  const all = specifiers.find(({ type }) => type === 'ImportNamespaceSpecifier')
  const names = specifiers.filter((one) => one !== all).map(binding)
  if (all && names.length > 0) return `const ${all.local.name} = ${loaded}, { ${names.join(', ')} } = ${all.local.name}`
  if (all) return `const ${all.local.name} = ${loaded}`
  return names.length > 0 ? `const { ${names.join(', ')} } = ${loaded}` : loaded
}

function binding({ type, imported, local }) {
  if (type === 'ImportDefaultSpecifier') return `default: ${local.name}`
  return `${imported.raw ?? imported.name}: ${local.name}`
}
