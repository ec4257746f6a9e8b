// A small web app: a prompt becomes code, and the code becomes a live preview in a sandbox.
//
//   browser ── prompt ──▶ this server ── prompt ──▶ model
//                              │ fragment
//                              ▼
//                         POST /api/v1/fragments of Isopod ──▶ a sandbox
//   browser ◀── iframe ── the sandbox's preview URL
//
// The API key stays here: the page never sees it.

import { readFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { Sandbox } from 'e2b'
import { askModel } from './model.mjs'

const API_URL = process.env.E2B_API_URL ?? 'http://localhost:3000'
const API_KEY = process.env.E2B_API_KEY
const PORT = Number(process.env.PORT ?? 5173)
const MAX_BODY = 64 * 1024

const FILES = new Map([
  ['/', ['index.html', 'text/html; charset=utf-8']],
  ['/app.js', ['app.js', 'text/javascript; charset=utf-8']],
  ['/style.css', ['style.css', 'text/css; charset=utf-8']],
])

const ACTIONS = new Map([
  ['POST /api/generate', generate],
  ['POST /api/publish', publish],
  ['POST /api/stop', stop],
])

/** Turns a prompt into a fragment and runs it. */
async function generate({ prompt }) {
  if (typeof prompt !== 'string' || prompt.trim() === '') throw new Failure(400, 'Say what to build.')
  const fragment = await askModel(prompt)
  try {
    return { fragment, result: await callIsopod('/api/v1/fragments', fragment) }
  } catch (error) {
    // The page shows the code also if it does not run.
    if (error instanceof Failure) error.body.fragment = fragment
    throw error
  }
}

/** Gives the preview a short URL that anybody may open. */
function publish({ sbxId, url, duration }) {
  return callIsopod('/api/v1/fragments/published', { sbxId, url, duration })
}

/** Ends the sandbox, with E2B's own SDK: sandboxes of fragments are ordinary sandboxes. */
async function stop({ sbxId }) {
  return { stopped: await Sandbox.kill(String(sbxId)) }
}

async function callIsopod(path, body) {
  const response = await fetch(API_URL + path, {
    method: 'POST',
    headers: { 'X-API-Key': API_KEY, 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  })
  const answer = await response.json()
  if (!response.ok) throw new Failure(response.status, answer.message, { details: answer.details })
  return answer
}

class Failure extends Error {
  constructor(status, message, body = {}) {
    super(message)
    this.status = status
    this.body = body
  }
}

async function answer(request) {
  const { pathname } = new URL(request.url, 'http://localhost')
  const file = request.method === 'GET' && FILES.get(pathname)
  if (file) return { type: file[1], text: await readFile(new URL(`public/${file[0]}`, import.meta.url)) }
  const action = ACTIONS.get(`${request.method} ${pathname}`)
  if (!action) throw new Failure(404, 'There is nothing here.')
  return { type: 'application/json', text: JSON.stringify(await action(await readJson(request))) }
}

async function readJson(request) {
  // A form of another site can't send JSON without asking first.
  if (request.headers['content-type'] !== 'application/json') throw new Failure(415, 'Send JSON.')
  let text = ''
  for await (const piece of request.setEncoding('utf8')) {
    text += piece
    if (text.length > MAX_BODY) throw new Failure(413, 'The prompt is too long.')
  }
  try {
    return Object(JSON.parse(text))
  } catch {
    throw new Failure(400, 'This is not JSON.')
  }
}

const server = createServer(async (request, response) => {
  try {
    const { type, text } = await answer(request)
    response.writeHead(200, { 'Content-Type': type }).end(text)
  } catch (error) {
    if (!(error instanceof Failure)) console.error(error)
    const body = { message: error.message, ...error.body }
    response.writeHead(error.status ?? 502, { 'Content-Type': 'application/json' }).end(JSON.stringify(body))
  }
})

if (!API_KEY) {
  console.error('error: E2B_API_KEY is not set\nhint: `isopod serve` prints it when it starts')
  process.exit(1)
}
server.listen(PORT, '127.0.0.1', () => console.log(`http://localhost:${server.address().port}`))
