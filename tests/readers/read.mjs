// Reads event streams as a program in Node does, and prints the events of each as a line of JSON.
//
//     node read.mjs fetch|eventsource-parser    < JSON: [{"url", "accept"}, ...]
//
// fetch: lines by Node's own readline, which also ends a line at U+2028 and U+2029.
import { createInterface } from "node:readline";
import { Readable } from "node:stream";
import { text } from "node:stream/consumers";

async function* linesOf(response) {
  yield* createInterface({ input: Readable.fromWeb(response.body), crlfDelay: Infinity });
}

async function readNdjson(response) {
  const events = [];
  for await (const line of linesOf(response)) {
    if (!line) continue;
    const { event, sequence, ...fields } = JSON.parse(line);
    events.push({ event, sequence, fields });
  }
  return events;
}

async function readSse(response) {
  const events = [];
  let found = {};
  for await (const line of linesOf(response)) {
    if (line.startsWith("id: ")) found.sequence = Number(line.slice(4));
    else if (line.startsWith("event: ")) found.event = line.slice(7);
    else if (line.startsWith("data: ")) found.fields = JSON.parse(line.slice(6));
    else if (line === "" && found.fields !== undefined) {
      events.push(found);
      found = {};
    } else if (line !== "" && !line.startsWith(":")) throw new Error(`torn: ${line}`);
  }
  return events;
}

async function readWithParser(response) {
  const { EventSourceParserStream } = await import("eventsource-parser/stream");
  const events = [];
  const parsed = response.body
    .pipeThrough(new TextDecoderStream())
    .pipeThrough(new EventSourceParserStream({ onError: "terminate" }));
  for await (const { id, event, data } of parsed) {
    events.push({ sequence: Number(id), event, fields: JSON.parse(data) });
  }
  return events;
}

const withParser = process.argv[2] === "eventsource-parser";
for (const { url, accept } of JSON.parse(await text(process.stdin))) {
  const response = await fetch(url, { headers: { Accept: accept } });
  if (response.status !== 200) throw new Error(`${url}: ${response.status}`);
  const read = withParser ? readWithParser : accept === "text/event-stream" ? readSse : readNdjson;
  process.stdout.write(JSON.stringify(await read(response)) + "\n");
}
