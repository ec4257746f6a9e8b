// An application written for E2B, of any age: it knows nothing but the key that stands in its environment.
// Its argument is the package: that of the code interpreter can run code besides.
const name = process.argv[2]
const { Sandbox } = await import(name)

async function fetchText(url) {
  const deadline = Date.now() + 20_000
  for (;;) {
    try {
      const response = await fetch(url)
      if (response.ok) return await response.text()
    } catch (error) {
      if (Date.now() > deadline) throw error
    }
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

const sandbox = await Sandbox.create()
try {
  if (sandbox.runCode) console.log((await sandbox.runCode('40 + 2')).text)
  console.log((await sandbox.commands.run('echo from a command')).stdout.trim())
  await sandbox.files.write('/tmp/note.txt', 'from a file')
  console.log(await sandbox.files.read('/tmp/note.txt'))
  await sandbox.commands.run('cd /tmp && python3 -m http.server 8000', { background: true })
  console.log(await fetchText(`https://${sandbox.getHost(8000)}/note.txt`))
} finally {
  await sandbox.kill()
}
