// Drives E2B's npm SDKs through one session and prints the results as a line of JSON.
//
//     E2B_DEBUG=true E2B_SANDBOX_URL=URL node drive_e2b.mjs
//
// URL serves both APIs: the SDK has a single variable for them.

import { Sandbox } from '@e2b/code-interpreter'

const until = async (condition) => {
  const end = Date.now() + 30_000
  while (!condition()) {
    if (Date.now() > end) throw new Error('never came true')
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

const errorOf = async (action) => {
  try {
    await action()
  } catch (error) {
    return error.constructor.name
  }
  return null
}

const failureOf = async (action) => {
  try {
    await action()
  } catch (error) {
    return [error.exitCode, error.stdout]
  }
  return null
}

const commands = async (box) => {
  const plain = await box.commands.run('echo $GREETING; echo err >&2', { envs: { GREETING: 'é' } })
  const fed = await box.commands.run('cat; exit 3', { background: true, stdin: true })
  await box.commands.sendStdin(fed.pid, 'typed')
  await box.commands.closeStdin(fed.pid)
  const victim = await box.commands.run('sleep 600', { background: true })
  const listed = (await box.commands.list()).map((process) => process.pid)
  const left = await box.commands.run('read line; echo back; exit 4', { background: true, stdin: true })
  await left.disconnect()
  const again = await box.commands.connect(left.pid)
  await box.commands.sendStdin(left.pid, '\n')
  return {
    plain: [plain.stdout, plain.stderr, plain.exitCode],
    failed: await failureOf(() => box.commands.run('echo some; exit 7')),
    timeout: await errorOf(() => box.commands.run('sleep 600', { timeoutMs: 1000 })),
    stdin: await failureOf(() => fed.wait()),
    listed: listed.includes(victim.pid),
    killed: await victim.kill(),
    reconnected: await failureOf(() => again.wait()),
    unknown: await box.commands.kill(4_000_000),
    connect: await errorOf(() => box.commands.connect(4_000_000)),
    cwd: await errorOf(() => box.commands.run('true', { cwd: '/no/such/dir' })),
    health: await box.isRunning(),
  }
}

const files = async (box) => {
  const top = `/tmp/e2b-npm-${process.pid}-${Date.now()}`
  const bytes = new Uint8Array(8 << 20).map((_, index) => (index * 7919) >> 5)
  await box.files.write(`${top}/big.bin`, bytes.buffer)
  const back = await box.files.read(`${top}/big.bin`, { format: 'bytes' })
  const names = ['naïve 日本.txt', 'say "hi" 100%25.txt', "it's a;b=c&d+e#f?.txt"]
  await box.files.write(names.map((name) => ({ path: `${top}/${name}`, data: name })))
  const read = await Promise.all(names.map((name) => box.files.read(`${top}/${name}`)))
  const listed = (await box.files.list(top)).map((entry) => entry.name)
  const events = []
  const watch = await box.files.watchDir(top, (event) => {
    events.push([event.type, event.name])
  })
  await box.commands.run(`echo x > ${top}/new`)
  await until(() => events.some(([type]) => type === 'write'))
  await watch.stop()
  const found = {
    bytes: Buffer.compare(Buffer.from(back), Buffer.from(bytes)) === 0,
    names: names.every((name, index) => listed.includes(name) && read[index] === name),
    made: [await box.files.makeDir(`${top}/made`), await box.files.makeDir(`${top}/made`)],
    missing: await errorOf(() => box.files.read(`${top}/nothing`)),
    watched: events,
  }
  await box.files.remove(top)
  return { ...found, exists: await box.files.exists(top) }
}

const terminal = async (box) => {
  let shown = ''
  const pty = await box.pty.create({
    cols: 80,
    rows: 24,
    onData: (data) => {
      shown += Buffer.from(data).toString()
    },
  })
  await box.pty.resize(pty.pid, { cols: 97, rows: 31 })
  await box.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit 6\n'))
  const [exitCode] = await failureOf(() => pty.wait())
  return [exitCode, shown.includes('31 97')]
}

const code = async (box) => {
  const first = await box.runCode("x = 41\nprint('line\\u2028sep')\nx + 1")
  const context = await box.createCodeContext({ cwd: '/tmp' })
  const found = {
    first: [first.text, first.logs.stdout.join(''), first.error ?? null],
    state: (await box.runCode('x')).text,
    error: (await box.runCode('1/0')).error.name,
    env: (await box.runCode("import os; os.environ['A']", { envs: { A: '1' } })).text,
    context: [context.cwd, (await box.runCode('x', { context })).error.name],
    timeout: await errorOf(() => box.runCode('import time; time.sleep(600)', { timeoutMs: 1000 })),
    after: (await box.runCode('x + 2')).text,
  }
  await box.removeCodeContext(context)
  return found
}

const box = await Sandbox.create()
const found = {}
for (const part of [commands, files, terminal, code]) found[part.name] = await part(box)
console.log(JSON.stringify(found))
process.exit(0)
