// The interpreter of a JavaScript context: takes cells from the daemon, runs them one after the other in one realm, and
// tells what came of them. Only what Node brings is used. Descriptor 3 is the channel; Node keeps it from its children.
'use strict';
const fs = require('fs');
const util = require('util');
const vm = require('vm');
const { createRequire } = require('module');

const LONGEST_TEXT = 1024 * 1024;
const channel = 3;
const asText = (value) => shortened(util.inspect(value, { depth: 4, maxArrayLength: 100 }));
const shortened = (text) =>
  text.length > LONGEST_TEXT ? `${text.slice(0, LONGEST_TEXT)}… (${text.length - LONGEST_TEXT} more characters)` : text;

function tell(...events) {
  let message = Buffer.concat(
    events.map((event) => {
      const json = Buffer.from(JSON.stringify(event));
      return Buffer.concat([Buffer.from(`${json.length}\n`), json]);
    }),
  );
  while (message.length > 0) {
    try {
      message = message.subarray(fs.writeSync(channel, message));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

// What is printed is written at once, so that it stands before what is told after it.
const writeSync = (fd) => (chunk, encoding, done) => {
  let bytes = typeof chunk === 'string' ? Buffer.from(chunk, typeof encoding === 'string' ? encoding : 'utf8') : chunk;
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(fs.writeSync(fd, bytes));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
  const then = typeof encoding === 'function' ? encoding : done;
  if (then) process.nextTick(then);
  return true;
};
process.stdout.write = writeSync(1);
process.stderr.write = writeSync(2);

const require_ = createRequire(`${process.cwd()}/`);
// Cells see the realm of Node itself, so that its classes are the same as those of modules.
Object.assign(globalThis, { require: require_, display });
let count = 0;
let inbox = Buffer.alloc(0);

function display(...values) {
  for (const value of values) {
    acks += 1;
    tell({ event: 'display', data: mediaOf(value), ack: acks });
    awaitAck(`ack ${acks}`);
  }
}

// What is printed after this returns stands behind what was shown. Nothing else can run meanwhile, so this waits.
let acks = 0;
function awaitAck(wanted) {
  const pause = new Int32Array(new SharedArrayBuffer(4));
  const piece = Buffer.alloc(65536);
  for (;;) {
    const end = inbox.indexOf(10);
    const line = end < 0 ? '' : inbox.subarray(0, end).toString();
    if (line.startsWith('cell')) {
      // It was shown by a timer, and a cell has come since: that cell is next.
      setImmediate(takeCells);
      return;
    }
    if (end >= 0) {
      inbox = inbox.subarray(end + 1);
      if (line === wanted) return;
      continue;
    }
    try {
      const length = fs.readSync(channel, piece);
      if (length === 0) return;
      inbox = Buffer.concat([inbox, piece.subarray(0, length)]);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(pause, 0, 0, 0.1);
    }
  }
}

function mediaOf(value) {
  const data = { 'text/plain': asText(value) };
  for (const [media, name] of [
    ['text/html', 'toHtml'],
    ['text/markdown', 'toMarkdown'],
    ['image/svg+xml', 'toSvg'],
  ]) {
    if (value && typeof value === 'object' && typeof value[name] === 'function') {
      data[media] = shortened(String(value[name]()));
    }
  }
  if (value && typeof value === 'object' && [Object.prototype, Array.prototype].includes(Object.getPrototypeOf(value))) {
    try {
      const json = JSON.stringify(value);
      if (json.length <= LONGEST_TEXT && !tooDeep(value, 0)) data['application/json'] = JSON.parse(json);
    } catch {
      // It has no such form.
    }
  }
  return data;
}

function tooDeep(value, depth) {
  if (depth > 100) return true;
  return value !== null && typeof value === 'object' && Object.values(value).some((inner) => tooDeep(inner, depth + 1));
}

function isIncomplete(code) {
  try {
    new vm.Script(code);
    return false;
  } catch {
    return true;
  }
}

// A script keeps what it declares for later ones. Code that awaits is a function, whose outermost declarations become
// globals; its last expression is returned.
async function evaluate(code, file) {
  const options = { filename: file, importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER };
  if (!isIncomplete(code) || !/\bawait\b/.test(code)) {
    // An object at the beginning is an expression, and not a block with a label.
    const wrapped = /^\s*\{/.test(code) && !/;\s*$/.test(code) ? `(${code}\n)` : code;
    const value = new vm.Script(isIncomplete(wrapped) ? code : wrapped, options).runInThisContext({ breakOnSigint: true });
    return value;
  }
  const body = code.replace(/^(const|let|var)\s+([A-Za-z_$][\w$]*)\s*=/gm, 'globalThis.$2 =');
  const lines = body.trimEnd().split('\n');
  for (let from = lines.length - 1; from >= 0; from -= 1) {
    const statements = lines.slice(0, from).join('\n');
    let last = lines.slice(from).join('\n').replace(/;\s*$/, '');
    const cut = last.lastIndexOf(';');
    const tries = [[statements, last]];
    if (cut >= 0) tries.push([`${statements}\n${last.slice(0, cut)}`, last.slice(cut + 1)]);
    for (const [before, expression] of tries) {
      const source = `(async () => { ${before}\nreturn (${expression}\n); })()`;
      if (!isIncomplete(source)) return new vm.Script(source, options).runInThisContext({ breakOnSigint: true });
    }
  }
  return new vm.Script(`(async () => { ${body}\n })()`, options).runInThisContext({ breakOnSigint: true });
}

let interrupt = null;
process.on('SIGINT', () => interrupt?.());

async function run(code) {
  const file = `<cell ${count}>`;
  const interrupted = new Promise((_, reject) => {
    interrupt = () => reject(Object.assign(new Error('interrupted'), { code: 'ERR_SCRIPT_EXECUTION_INTERRUPTED' }));
  });
  interrupted.catch(() => {});
  try {
    const value = await Promise.race([evaluate(code, file), interrupted]);
    if (value === undefined) return tell({ event: 'end', status: 'success' });
    globalThis._ = value;
    return tell({ event: 'result', data: mediaOf(value) }, { event: 'end', status: 'success' });
  } catch (error) {
    if (error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') {
      return tell(
        { event: 'error', name: 'KeyboardInterrupt', value: '', traceback: ['KeyboardInterrupt'] },
        { event: 'end', status: 'interrupted' },
      );
    }
    return tell(failure(error), { event: 'end', status: 'error' });
  } finally {
    interrupt = null;
  }
}

function failure(error) {
  const isError = error instanceof Error;
  const stack = isError && typeof error.stack === 'string' ? error.stack : `Uncaught ${asText(error)}`;
  const lines = stack.split('\n').filter((line) => !/\[eval\]|node:/.test(line));
  const name = isError ? String(error.name) : 'Uncaught';
  return { event: 'error', name, value: isError ? String(error.message) : asText(error), traceback: lines };
}

// What fails behind a cell's back is told, and the context goes on.
process.on('uncaughtException', (error) => process.stderr.write(`Uncaught ${asText(error)}\n`));
process.on('unhandledRejection', (error) => process.stderr.write(`Uncaught (in promise) ${asText(error)}\n`));

const socket = new (require('net').Socket)({ fd: channel, readable: true, writable: false });
let queue = Promise.resolve();
socket.on('data', (piece) => {
  inbox = Buffer.concat([inbox, piece]);
  takeCells();
});

function takeCells() {
  for (;;) {
    const end = inbox.indexOf(10);
    if (end < 0) return;
    const [kind, number, length] = inbox.subarray(0, end).toString().split(' ');
    if (kind !== 'cell') {
      inbox = inbox.subarray(end + 1);
      continue;
    }
    if (inbox.length < end + 1 + Number(length)) return;
    const code = inbox.subarray(end + 1, end + 1 + Number(length)).toString();
    inbox = inbox.subarray(end + 1 + Number(length));
    queue = queue.then(() => {
      count = Number(number);
      return run(code);
    });
  }
}
socket.on('close', () => process.exit(0));
tell({ event: 'ready' });
