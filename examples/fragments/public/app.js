const element = (id) => document.getElementById(id)
let current = null

element('ask').addEventListener('submit', async (event) => {
  event.preventDefault()
  reset()
  say('Building…')
  const answer = await call('generate', { prompt: element('prompt').value })
  if (answer.body.fragment) showCode(answer.body.fragment)
  if (!answer.ok) return showFailure(answer.body)
  current = answer.body.result
  showResult(current)
  say(answer.body.fragment.commentary ?? 'Done.')
})

element('publish').addEventListener('click', async () => {
  const { sbxId, url } = current
  const answer = await call('publish', { sbxId, url, duration: '1h' })
  if (!answer.ok) return showFailure(answer.body)
  const link = element('link')
  link.href = link.textContent = answer.body.url
})

element('stop').addEventListener('click', async () => {
  const answer = await call('stop', { sbxId: current.sbxId })
  if (!answer.ok) return showFailure(answer.body)
  reset()
  say('The sandbox has ended.')
})

async function call(action, body) {
  const headers = { 'Content-Type': 'application/json' }
  try {
    const response = await fetch(`/api/${action}`, { method: 'POST', headers, body: JSON.stringify(body) })
    return { ok: response.ok, body: await response.json() }
  } catch (error) {
    return { ok: false, body: { message: `The app's server did not answer: ${error.message}` } }
  }
}

function showCode({ code, file_path }) {
  const files = Array.isArray(code) ? code : [{ file_path, file_content: code }]
  for (const file of files) {
    element('code').append(made('h3', file.file_path), made('pre', file.file_content))
  }
}

function showResult(result) {
  const preview = element('preview')
  if (result.url) {
    const frame = document.createElement('iframe')
    // The preview has an origin of its own, so it can't reach this page.
    frame.sandbox = 'allow-forms allow-scripts allow-same-origin'
    frame.src = result.url
    preview.append(frame)
    element('publish').hidden = false
  } else {
    preview.append(made('pre', [...result.stdout, ...result.stderr].join('')))
    for (const cell of result.cellResults) preview.append(shown(cell))
    if (result.runtimeError) preview.append(made('pre', result.runtimeError.traceback, 'error'))
    element('publish').hidden = true
  }
  element('actions').hidden = false
}

function shown(cell) {
  if (!cell.png) return made('pre', cell.text ?? '')
  const image = document.createElement('img')
  image.src = `data:image/png;base64,${cell.png}`
  return image
}

/** The step that failed, and what it wrote. */
function showFailure({ message, details }) {
  say(message, 'error')
  const written = [details?.stdout, details?.stderr].filter(Boolean).join('')
  if (written) element('preview').append(made('pre', written, 'error'))
}

function reset() {
  current = null
  for (const id of ['code', 'preview']) element(id).replaceChildren()
  element('actions').hidden = true
  element('link').removeAttribute('href')
  element('link').textContent = ''
}

function say(text, kind = '') {
  element('status').textContent = text
  element('status').className = kind
}

function made(tag, text, kind = '') {
  const one = document.createElement(tag)
  one.textContent = text
  one.className = kind
  return one
}
