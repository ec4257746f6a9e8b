// Cases with npm's `@e2b/desktop`. Words select cases by name.
import assert from 'node:assert/strict'
import https from 'node:https'
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'

const home = join(process.env.SDK_PROJECT, 'node_modules/@e2b/desktop/dist/index.mjs')
const { CommandExitError, Sandbox } = await import(pathToFileURL(home).href)

const DEADLINE = 60_000
const PAGE = '<title>A page for the browser</title><h1>Hello</h1>'

async function withDesktop(options, body) {
  const sandbox = await Sandbox.create({ timeoutMs: 600_000, ...options })
  try {
    await body(sandbox)
  } finally {
    await sandbox.kill()
  }
}

// Waits until `look` returns something true. A command that fails counts as false: the window may not be there yet.
async function until(what, look) {
  const deadline = Date.now() + DEADLINE
  for (;;) {
    try {
      const found = await look()
      if (found) return found
    } catch (error) {
      if (!(error instanceof CommandExitError)) throw error
    }
    assert(Date.now() < deadline, `never happened: ${what}`)
    await sleep(200)
  }
}

const windowOf = (sandbox, application, title = '') =>
  until(`a window of ${application} with ${title} in its title`, async () => {
    for (const id of await sandbox.getApplicationWindows(application)) {
      if ((await sandbox.getWindowTitle(id)).includes(title)) return id
    }
  })

function pngSize(image) {
  const bytes = Buffer.from(image)
  assert.equal(bytes.subarray(0, 8).toString('hex'), '89504e470d0a1a0a')
  return [bytes.readUInt32BE(16), bytes.readUInt32BE(20)]
}

// Sends a request to the server, whatever its name resolves to.
function send(url, path, headers) {
  const { hostname, host, port, protocol } = new URL(url)
  assert.equal(protocol, 'https:')
  const options = { host: '127.0.0.1', servername: hostname, port, path, headers: { host, ...headers } }
  return https.get({ ...options, rejectUnauthorized: false })
}

const fetchPage = (url) =>
  new Promise((resolve, reject) => {
    const request = send(url, new URL(url).pathname, {})
    request.on('error', reject).on('response', async (response) => {
      const text = (await response.toArray()).join('')
      resolve({ status: response.statusCode, text })
    })
  })

// What the VNC server says first, its version, and what it asks for: 1 is nothing, and 2 a password.
const greet = (url) =>
  new Promise((resolve, reject) => {
    const key = randomBytes(16).toString('base64')
    const headers = { connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': 13, 'sec-websocket-key': key }
    const request = send(url, '/websockify', { ...headers, 'sec-websocket-protocol': 'binary' })
    request.on('error', reject).on('response', (response) => reject(new Error(`no WebSocket: ${response.statusCode}`)))
    request.on('upgrade', (_, socket, head) => {
      let read = Buffer.alloc(0)
      let version
      const take = (piece) => {
        read = Buffer.concat([read, piece])
        if (read.length < 2 || read.length < 2 + read[1]) return
        const message = read.subarray(2, 2 + read[1])
        read = read.subarray(2 + read[1])
        if (version === undefined) {
          version = message.toString('latin1')
          // A mask of zeros leaves the message as it is.
          socket.write(Buffer.concat([Buffer.from([0x82, 0x80 | message.length, 0, 0, 0, 0]), message]))
          return
        }
        socket.destroy()
        resolve({ version, asks: [...message.subarray(1, 1 + message[0])] })
      }
      socket.on('data', take).on('error', reject).on('close', () => reject(new Error('the WebSocket closed')))
      take(head)
    })
  })

// Kind, button and place on the screen of the events that xev printed.
const buttonEvents = (text) =>
  [...text.matchAll(/^Button(Press|Release) event.*\n.*root:\((\d+),(\d+)\).*\n.*button (\d+)/gm)].map(
    ([, kind, x, y, button]) => `${kind} ${button} ${x} ${y}`,
  )

const CASES = {
  async a_screenshot_is_a_png_of_the_screen() {
    await withDesktop({ resolution: [1280, 720] }, async (sandbox) => {
      assert.deepEqual(await sandbox.getScreenSize(), { width: 1280, height: 720 })
      assert.deepEqual(pngSize(await sandbox.screenshot()), [1280, 720])
    })
  },

  async what_is_typed_reaches_the_terminal_and_the_screenshot() {
    await withDesktop({}, async (sandbox) => {
      const before = Buffer.from(await sandbox.screenshot())
      await sandbox.launch('xfce4-terminal')
      const terminal = await windowOf(sandbox, 'xfce4-terminal', 'Terminal')
      await until('the terminal has the focus', async () => (await sandbox.getCurrentWindowId()) === terminal)
      const text = `It's "typed": 100% & <more> than 25 characters`
      await sandbox.write('cat > /tmp/typed', { chunkSize: 25, delayInMs: 20 })
      await sandbox.press('enter')
      await sandbox.write(text)
      await sandbox.press('enter')
      await sandbox.press(['ctrl', 'd'])
      await until('the text is in the file', async () => (await sandbox.commands.run('cat /tmp/typed')).stdout === `${text}\n`)
      const after = Buffer.from(await sandbox.screenshot())
      assert.deepEqual(pngSize(after), [1024, 768])
      assert(!after.equals(before))
    })
  },

  async the_mouse_clicks_scrolls_and_drags() {
    await withDesktop({}, async (sandbox) => {
      const recorder = 'stdbuf -oL xev -geometry 500x400+200+200 -event button > /tmp/events'
      await sandbox.commands.run(recorder, { background: true, timeoutMs: 0 })
      const search = "xdotool search --onlyvisible --name 'Event Tester'"
      const xev = await until("xev's window", async () => (await sandbox.commands.run(search)).stdout.trim())
      await until('xev has the focus', async () => (await sandbox.getCurrentWindowId()) === xev)
      const seen = []
      const gives = async (act, ...expected) => {
        await act()
        seen.push(...expected)
        const look = async () => buttonEvents(await sandbox.files.read('/tmp/events')).join() === seen.join()
        await until(`the events ${expected}`, look)
      }
      const click = (button, x, y) => [`Press ${button} ${x} ${y}`, `Release ${button} ${x} ${y}`]
      await sandbox.moveMouse(400, 450)
      assert.deepEqual(await sandbox.getCursorPosition(), { x: 400, y: 450 })
      await gives(() => sandbox.leftClick(410, 460), ...click(1, 410, 460))
      await gives(() => sandbox.doubleClick(420, 470), ...click(1, 420, 470), ...click(1, 420, 470))
      await gives(() => sandbox.rightClick(430, 480), ...click(3, 430, 480))
      await gives(() => sandbox.middleClick(440, 490), ...click(2, 440, 490))
      await gives(() => sandbox.scroll('up', 2), ...click(4, 440, 490), ...click(4, 440, 490))
      await gives(() => sandbox.scroll('down'), ...click(5, 440, 490))
      await gives(() => sandbox.drag([350, 400], [450, 500]), 'Press 1 350 400', 'Release 1 450 500')
    })
  },

  async files_and_pages_open_in_their_programs() {
    await withDesktop({}, async (sandbox) => {
      await sandbox.files.write('/home/user/note.txt', 'a note')
      await sandbox.open('/home/user/note.txt')
      await windowOf(sandbox, 'mousepad', 'note.txt')
      await sandbox.files.write('/home/user/page.html', PAGE)
      await sandbox.launch('google-chrome', 'file:///home/user/page.html')
      await windowOf(sandbox, 'chromium', 'A page for the browser')
    })
  },

  async the_stream_is_served_until_it_is_stopped() {
    await withDesktop({}, async (sandbox) => {
      await sandbox.stream.start()
      const url = sandbox.stream.getUrl()
      const page = await fetchPage(url)
      assert.equal(page.status, 200)
      assert(page.text.includes('noVNC'))
      const open = await greet(url)
      assert.match(open.version, /^RFB 003\./)
      assert.deepEqual(open.asks, [1])
      await assert.rejects(sandbox.stream.start(), /already running/)
      await sandbox.stream.stop()
      await until('the page is gone', async () => (await fetchPage(url)).status === 502)
      await sandbox.stream.start({ requireAuth: true })
      const withKey = sandbox.stream.getUrl({ authKey: sandbox.stream.getAuthKey() })
      assert(withKey.includes(`password=${sandbox.stream.getAuthKey()}`))
      assert.deepEqual((await greet(withKey)).asks, [2])
    })
  },

  async the_program_of_the_page_works() {
    const page = readFileSync(new URL('../../docs/desktop.md', import.meta.url), 'utf8')
    const place = mkdtempSync(join(tmpdir(), 'isopod-desktop-'))
    try {
      writeFileSync(join(place, 'page.mjs'), page.split('```js\n')[1].split('```')[0])
      symlinkSync(join(process.env.SDK_PROJECT, 'node_modules'), join(place, 'node_modules'))
      const printed = execFileSync('node', ['page.mjs'], { cwd: place, encoding: 'utf8', timeout: 2 * DEADLINE })
      assert.match(printed, /^https:\/\/6080-\S+\/vnc\.html\?\S*&password=\w{16}\n$/)
      assert.deepEqual(pngSize(readFileSync(join(place, 'screen.png'))), [1280, 720])
    } finally {
      rmSync(place, { recursive: true })
    }
  },
}

const only = process.argv.slice(2)
for (const [name, body] of Object.entries(CASES)) {
  const full = `js: ${name}`
  if (only.length > 0 && !only.some((text) => full.includes(text))) continue
  try {
    await body()
    console.log(`ok ${full}`)
  } catch (error) {
    console.log(`${error.stack}\nFAILED ${full}`)
    process.exitCode = 1
  }
}
