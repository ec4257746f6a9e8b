// Shared by the JavaScript cases. The SDK is the one of the project that the driver names.
import assert from 'node:assert/strict'
import http from 'node:http'
import https from 'node:https'
import { readFileSync, readdirSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { test } from 'node:test'

const packageName = process.env.SDK_PACKAGE ?? 'e2b'
const home = join(process.env.SDK_PROJECT, 'node_modules', packageName)
const manifest = JSON.parse(readFileSync(join(home, 'package.json'), 'utf8'))

// The bundle for `import`, or the one for `require` if a release has broken the other.
export const sdk =
  process.env.SDK_BUNDLE === 'require'
    ? createRequire(join(process.env.SDK_PROJECT, 'package.json'))(packageName)
    : await import(pathToFileURL(join(home, manifest.module)).href)
export const { Sandbox } = sdk
export { assert, sleep }
export const url = process.env.E2B_SANDBOX_URL

const coreOnly = process.env.SDK_CORE === '1'
const texts = (variable) => (process.env[variable] ?? '').split('\n').filter(Boolean)
const chosen = [texts('SDK_ONLY'), texts('SDK_AMONG')].filter((list) => list.length > 0)

// Registers a case of a feature. `core`: also for older versions.
export function feature(name, title, options, body) {
  if (body === undefined) [options, body] = [{}, options]
  const full = `${name}: ${title}`
  if (coreOnly && !options.core) return
  if (!chosen.every((list) => list.some((text) => `${name}:${title}`.includes(text)))) return
  test(full, { timeout: 90_000, concurrency: true }, async (t) => {
    try {
      await body(t)
    } catch (error) {
      if (error instanceof Absent) t.skip(error.message)
      else throw error
    }
  })
}

class Absent extends Error {}

const declarations = readFileSync(join(home, 'dist', 'index.d.ts'), 'utf8')

// Whether the types of the SDK have this.
export const knows = (pattern) => declarations.match(pattern) !== null

// They must have it, otherwise the case is skipped for this version.
export function declares(pattern) {
  if (!knows(pattern)) throw new Absent(`no ${pattern}`)
}

// A bug of these versions prevents it.
export function cannot(versions, why) {
  if (versions.includes(manifest.version)) throw new Absent(why)
}

// Returns the member, or skips the case for this version.
export function has(owner, name) {
  if (typeof owner?.[name] !== 'function') throw new Absent(`no ${name}`)
  return owner[name].bind(owner)
}

export async function withSandbox(options, body) {
  if (body === undefined) [options, body] = [{}, options]
  const { template, ...rest } = { timeoutMs: 120_000, ...options }
  const sandbox = template ? await Sandbox.create(template, rest) : await Sandbox.create(rest)
  try {
    return await body(sandbox)
  } finally {
    await Sandbox.kill(sandbox.sandboxId)
  }
}

export async function until(condition, seconds = 20) {
  const deadline = Date.now() + seconds * 1000
  for (;;) {
    const value = await condition()
    if (value) return value
    assert(Date.now() < deadline, `it did not come true in ${seconds} s`)
    await sleep(100)
  }
}

export async function pages(paginator) {
  const found = [await paginator.nextItems()]
  while (paginator.hasNext) found.push(await paginator.nextItems())
  return found
}

export const unique = (prefix = 'case') => `${prefix}-${randomUUID().slice(0, 13)}`

// A plain request without any SDK. `fetch` does not allow setting the Host header.
export function plain(target, { method = 'GET', headers = {}, body } = {}) {
  return new Promise((resolve, reject) => {
    const { request: send } = new URL(target).protocol === 'https:' ? https : http
    const request = send(target, { method, headers }, (response) => {
      const parts = []
      response.on('data', (part) => parts.push(part))
      response.on('end', () =>
        resolve({ status: response.statusCode, headers: response.headers, body: Buffer.concat(parts).toString() })
      )
    })
    request.on('error', reject)
    request.end(body)
  })
}

// Pauses a sandbox, and waits until its processes are gone and their memory is on disk. Only the server's records tell.
export async function pauseToDisk(sandbox) {
  const state = process.env.ISOPOD_SUITE_STATE
  if (!state) throw new Absent('the server cannot save memory')
  await (sandbox.pause ?? sandbox.betaPause).call(sandbox)
  const boxes = join(state, 'homes/serve/boxes')
  const isSaved = (box) => {
    try {
      const record = JSON.parse(readFileSync(join(boxes, box, 'record.json'), 'utf8'))
      return record.spec?.sandbox === sandbox.sandboxId && !record.snapshot && record.state === 'saved' && !record.init
    } catch {
      // It is being replaced, or gone.
      return false
    }
  }
  await until(() => readdirSync(boxes).some(isSaved), 60)
}

// What a server in a sandbox answers through the edge.
export async function asked(sandbox, port) {
  const { status, body } = await plain(url, { headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port) } })
  return status === 200 ? body : undefined
}

export async function rejects(promise, kind) {
  let error
  await assert.rejects(promise, (seen) => {
    error = seen
    return true
  })
  if (kind) assert(error instanceof kind, `${error?.name}: ${error?.message} is not a ${kind.name}`)
  return error
}
