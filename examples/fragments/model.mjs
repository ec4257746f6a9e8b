// Asks a model for a fragment. With OPENAI_API_KEY, any model behind an OpenAI-compatible API; otherwise a few
// fragments that are written here, so that the example runs without an account.

import { scriptedFragment } from './scripted.mjs'

const API_KEY = process.env.OPENAI_API_KEY
const BASE_URL = process.env.OPENAI_BASE_URL ?? 'https://api.openai.com/v1'
const MODEL = process.env.OPENAI_MODEL ?? 'gpt-4o-mini'

export async function askModel(prompt) {
  return API_KEY ? askOpenAi(prompt) : scriptedFragment(prompt)
}

const INSTRUCTIONS = `You write one small program for the user's request. Answer with one JSON object and nothing else:
{
  "commentary": what you will do, in one or two sentences,
  "title": three words,
  "template": one of the templates below,
  "additional_dependencies": packages to install, usually [],
  "has_additional_dependencies": whether there are any,
  "install_dependencies_command": the shell line that installs them, or "",
  "port": the port of the app, or null,
  "file_path": the file of the template,
  "code": the whole file,
  "start_command": only for the template base: "python3 -m http.server 8000"
}
Templates:
- base: a static page. File index.html, port 8000. Prefer it for web pages.
- code-interpreter-v1: Python for data and charts, run once. File script.py, port null.
- streamlit-developer: Streamlit, reloads by itself. File app.py, port 8501.
- nextjs-developer: Next.js with Tailwind, reloads by itself. File pages/index.tsx, port 3000.`

async function askOpenAi(prompt) {
  const response = await fetch(`${BASE_URL}/chat/completions`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${API_KEY}`, 'Content-Type': 'application/json' },
    body: JSON.stringify({
      model: MODEL,
      response_format: { type: 'json_object' },
      messages: [
        { role: 'system', content: INSTRUCTIONS },
        { role: 'user', content: prompt },
      ],
    }),
  })
  const answer = await response.json()
  if (!response.ok) throw new Error(`the model answered ${response.status}: ${answer.error?.message ?? ''}`)
  const text = answer.choices?.[0]?.message?.content ?? ''
  try {
    // Some models put JSON into a code block whatever they are told.
    return JSON.parse(text.replace(/^```(?:json)?\s*|\s*```$/g, ''))
  } catch {
    throw new Error('the model did not answer with JSON; try again, or another OPENAI_MODEL')
  }
}
