// Turns the events of Node's test runner into one line of JSON for each case.
export default async function* reporter(source) {
  for await (const event of source) {
    if (event.type !== 'test:pass' && event.type !== 'test:fail') continue
    const { name, details, skip } = event.data
    // A file is a test of its own; only its failure to load is of interest.
    const isFile = name.endsWith('.mjs')
    if (isFile && event.type === 'test:pass') continue
    const [feature, title] = isFile ? ['create', name] : name.split(': ', 2)
    if (isFile && details.error?.failureType === 'subtestsFailed') continue
    const failed = event.type === 'test:fail'
    yield JSON.stringify({
      feature,
      name: title,
      outcome: failed ? 'failed' : skip !== undefined ? 'absent' : 'passed',
      seconds: Math.round(details.duration_ms / 10) / 100,
      error: failed ? describe(details.error) : null,
    }) + '\n'
  }
}

function describe(error) {
  const cause = error?.cause
  if (cause === undefined) return String(error?.message ?? error)
  return cause?.stack ?? String(cause?.message ?? cause)
}
