// Calls the `POST` of a route in TypeScript with the JSON from standard input, and prints what comes back.
import { readFileSync, writeFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { resolve } from 'node:path'
import ts from 'typescript'

const source = readFileSync(process.argv[2], 'utf8')
const options = { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 }
const { outputText, diagnostics } = ts.transpileModule(source, { compilerOptions: options, reportDiagnostics: true })
if (diagnostics.length) throw new Error(diagnostics.map((one) => ts.flattenDiagnosticMessageText(one.messageText, ' ')).join('\n'))
writeFileSync('route.mjs', outputText)
const { POST } = await import(pathToFileURL(resolve('route.mjs')).href)

const body = readFileSync(0, 'utf8')
const headers = { 'content-type': 'application/json' }
try {
  const answer = await POST(new Request('http://localhost/api/sandbox', { method: 'POST', headers, body }))
  console.log(JSON.stringify({ status: answer.status, body: await answer.json() }))
} catch (error) {
  console.log(JSON.stringify({ thrown: error.name, message: error.message }))
}
